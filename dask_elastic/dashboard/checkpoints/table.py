"""The table of a job's checkpoints, below a line about the newest complete one."""

from __future__ import annotations

import time
from html import escape

from bokeh.models import Div

from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
from dask_elastic.dashboard.figures.time_figure import CLOCK
from dask_elastic.dashboard.quantities import UNKNOWN, count, duration, plural, size
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus

SHOWN = 10
"""Number of checkpoints on the page; `job.checkpoints()` has older ones."""

NUMBERS = ("took", "written", "inputs held")


class CheckpointsTable:
    """One row for each of the newest checkpoints; hidden for a job without them."""

    def __init__(self) -> None:
        self.root = Div(name="checkpoints", sizing_mode="stretch_width", stylesheets=text_style(), visible=False)

    def update(self, taken: TakenCheckpoints | None) -> None:
        """Show the checkpoints of a job; None for a job without them."""
        text = "" if taken is None else _table(taken)
        if text != self.root.text:
            self.root.text = text
        if self.root.visible != bool(text):
            self.root.visible = bool(text)


def _table(taken: TakenCheckpoints) -> str:
    head = "".join(f'<th class="number">{name}</th>' for name in NUMBERS)
    rows = "".join(map(_row, reversed(taken.newest[-SHOWN:])))
    whole = f"<table><tr><th>number</th><th>began</th>{head}<th>error</th></tr>{rows}</table>" if rows else ""
    line = f'<p class="empty">{escape(_standing(taken.status))}</p>'
    return f'<h2>Checkpoints, newest first</h2>{line}<div class="scroll">{whole}</div>'


def _standing(status: CheckpointStatus) -> str:
    """Describe the newest complete checkpoint, restarts and checkpoints that were given up."""
    if not status.number:
        newest = "None is complete yet"
    elif status.age is None:
        newest = f"Resumed from checkpoint {status.number}"
    else:
        since = "before the job ended" if status.ended else "ago"
        newest = f"A restart continues from checkpoint {status.number}, which began {duration(status.age)} {since}"
    counts = [plural(status.restarts, "restart")] if status.restarts else []
    counts += [f"{count(status.given_up_count)} given up"] if status.given_up_count else []
    return "; ".join([newest, *counts]) + f". Folder: {status.url}"


def _row(taken: CheckpointDescription) -> str:
    failed = taken.error is not None
    cells = (
        duration(taken.seconds),
        UNKNOWN if failed else size(taken.nbytes),
        UNKNOWN if failed else duration(taken.held),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    began = time.strftime(CLOCK, time.localtime(taken.began))
    badge = '<span class="badge bad">given up</span> ' if failed else ""
    return (
        f'<tr><td>{taken.number}</td><td class="time">{began}</td>{numbers}'
        f"<td>{badge}{escape(taken.error or '')}</td></tr>"
    )

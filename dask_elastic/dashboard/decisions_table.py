"""The table of decisions: time, changes, reason, and latencies before and after."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

import numpy as np
from bokeh.models import ColumnDataSource, Div

from dask_elastic.dashboard.figures.time_figure import CLOCK, clock_milliseconds
from dask_elastic.dashboard.quantities import duration
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.dashboard.wording import changes_in_words
from dask_elastic.vocab.plan import Decision

SHOWN = 60
"""Number of decisions on the page; `job.decisions()` has older ones."""

HEAD = """<h2>Decisions, newest first</h2><div class="scroll"><table><tr>
<th>time</th><th>changes</th><th>reason</th><th class="number">measured</th><th class="number">target</th>
<th class="number">predicted</th><th class="number">observed</th></tr>"""


class DecisionsTable:
    """The newest decisions as text, and marks on the time axis for those that changed anything."""

    def __init__(self) -> None:
        self.root = Div(name="decisions", sizing_mode="stretch_width", stylesheets=text_style())
        self.marks = ColumnDataSource({"time": [], "alpha": []})
        self._rows: dict[tuple[int, int, float | None], str] | None = None

    def update(self, decisions: Sequence[Decision]) -> None:
        """Show the newest of the decisions, which are sorted oldest first; do nothing if none is new."""
        newest = {(one.generation, one.number, one.observed): one for one in decisions[-SHOWN:]}
        known = self._rows
        if known is not None and newest.keys() == known.keys():
            return
        self._rows = {key: (known or {}).get(key) or _row(decision) for key, decision in newest.items()}
        rows = "".join(reversed(self._rows.values()))
        none = '<p class="empty">None yet.</p>' if not newest else ""
        self.root.text = f"{HEAD}{rows}</table>{none}</div>"
        moments = np.array(
            [one.time for one in decisions if (one.changes or one.homes or one.others) and one.applied],
            dtype=np.float64,
        )
        # The more marks, the fainter each, so that they never hide the figure.
        alpha = np.full(len(moments), min(0.5, 15 / max(1, len(moments))))
        self.marks.data = {"time": clock_milliseconds(moments), "alpha": alpha}


def _row(decision: Decision) -> str:
    held = bool(decision.changes or decision.homes) and not decision.applied
    changes = "<br>".join(map(escape, changes_in_words(decision)))
    if held:
        changes += ' <span class="badge plain">not carried out</span>'
    moment = time.strftime(CLOCK, time.localtime(decision.time))
    numbers = (decision.measured, decision.target, decision.predicted, decision.observed)
    cells = "".join(f'<td class="number">{duration(number)}</td>' for number in numbers)
    look = ' class="held"' if held else ""
    return (
        f'<tr{look}><td class="time">{moment}</td><td class="what">{changes}</td>'
        f"<td>{escape(decision.reason)}</td>{cells}</tr>"
    )

"""The table of Spark handoffs to a job, and their progress."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from bokeh.models import Div

from dask_elastic.dashboard.quantities import UNKNOWN, count, rate, size
from dask_elastic.dashboard.style_sheet import text_style

if TYPE_CHECKING:
    from dask_elastic.vocab.epoch import HandoffProgress

HEAD = ("newest epoch", "epochs", "rows", "rows per second", "waiting", "staged", "on disk")


class HandoffsTable:
    """One row for each source that Spark feeds; hidden for a job without such sources."""

    def __init__(self) -> None:
        self.root = Div(name="handoffs", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, handoffs: Sequence[HandoffProgress], live: bool) -> None:
        """Show the progress of the handoffs.

        Parameters
        ----------
        handoffs : sequence of HandoffProgress
            One per source.
        live : bool
            Whether the job has not ended.
        """
        text = _table(handoffs, live) if handoffs else ""
        if text != self.root.text:
            self.root.text = text
        if self.root.visible != bool(handoffs):
            self.root.visible = bool(handoffs)


def _table(handoffs: Sequence[HandoffProgress], live: bool) -> str:
    head = "".join(f'<th class="number">{name}</th>' for name in HEAD)
    rows = "".join(_row(handoff, live) for handoff in handoffs)
    return f'<h2>Handoff</h2><div class="scroll"><table><tr><th>source</th>{head}</tr>{rows}</table></div>'


def _row(handoff: HandoffProgress, live: bool) -> str:
    full = live and handoff.waiting >= handoff.limit
    badge = ' <span class="badge">queue is full</span>' if full else ""
    cells = (
        UNKNOWN if handoff.epoch is None else count(handoff.epoch),
        count(handoff.epochs),
        count(handoff.rows),
        rate(handoff.rows_per_second) if live else UNKNOWN,
        f"{handoff.waiting} of {handoff.limit}" if live else UNKNOWN,
        size(handoff.staged),
        size(handoff.spilled),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f"<tr><td>{escape(handoff.source)}{badge}</td>{numbers}</tr>"

"""A table on the console."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_elastic.cli.terminal.console import UNLIMITED

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

Cell = str | tuple[str, str]
"""A text, or a text and its style, such as ``"bold red"``."""


@dataclass(frozen=True)
class ConsoleTable:
    """Rows below their headings.

    A terminal gets a line below the headings. Where it is too narrow, the optional columns are left out, which a line
    below the table reports, and then long texts are wrapped. Elsewhere every column is shown, and a row is a line.

    Parameters
    ----------
    head : sequence of str
        The headings.
    rows : sequence of sequences of cells
        The cells; each row has as many as there are headings.
    left : int or set of str
        Number of columns, from the first, that are aligned to the left and may be wrapped, or their headings; the
        others, of numbers, are aligned to the right.
    optional : sequence of str
        Headings of the columns that a narrow terminal does without, the most dispensable first.
    full : bool
        Whether the table has the full width of a terminal.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: int | Set[str] = 1
    optional: Sequence[str] = ()
    full: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        terminal, unlimited = console.is_terminal, options.update(width=UNLIMITED)
        for left_out in range(len(self.optional) + 1):
            table = self._table(terminal, self.optional[:left_out])
            if not terminal or Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        table.expand = terminal and self.full
        yield table
        if left_out:
            yield f"Not shown in {options.max_width} columns: {', '.join(self.optional[:left_out])}."

    def _table(self, terminal: bool, without: Sequence[str]) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0) if terminal else (0, 2, 0, 0),
            header_style="bold",
        )
        shown = [number for number, heading in enumerate(self.head) if heading not in without]
        for number in shown:
            text = number < self.left if isinstance(self.left, int) else self.head[number] in self.left
            table.add_column(
                Text(self.head[number]), justify="left" if text else "right", no_wrap=not text, overflow="fold"
            )
        for row in self.rows:
            cells = (row[number] for number in shown)
            table.add_row(*(Text(*cell) if isinstance(cell, tuple) else Text(cell) for cell in cells))
        return table

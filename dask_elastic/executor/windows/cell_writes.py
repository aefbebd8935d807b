"""New values of cells, which are written when all of a batch are known, and taken back if a result raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.windows.cells import Numbers
from dask_elastic.executor.windows.known_cells import CellsOfRows
from dask_elastic.state.session import Session
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column
from dask_elastic.state.window_fields import NO_END
from dask_elastic.vocab.chosen_rows import ChosenRows


class CellWrite(NamedTuple):
    """New values of the slices, or of the instances, that some rows are in, which are not written yet.

    Parameters
    ----------
    rows : RecordBatch or ChosenRows
        The rows.
    found : CellsOfRows
        Where their cells are.
    numbers : ndarray of int64
        The number of each of these cells.
    before, after : list of (ndarray or Ragged)
        The values of all fields; those that stay as they are, are the same objects.
    """

    rows: pa.RecordBatch | ChosenRows
    found: CellsOfRows
    numbers: Numbers
    before: list[Column]
    after: list[Column]

    def write(self, session: Session) -> None:
        """Write the new values."""
        self._scatter(session, self.after, self.before)

    def undo(self, session: Session, end: int) -> None:
        """Write the values of before, given the position of the cells' ends; new cells have no state again."""
        fresh = np.asarray(self.before[end]) == NO_END
        self._scatter(session, self.before, self.after, ~fresh)
        located = self.found.located
        while not session.remove(Found(located.slots, located.layout, []), fresh):
            # Their slots have other numbers by now.
            session.gather(located, [end])

    def _scatter(self, session: Session, values: list[Column], others: list[Column], where: Mask | None = None) -> None:
        changes = [None if value is other else value for value, other in zip(values, others, strict=True)]
        session.scatter(self.found.located, changes, where)


def write_cells(session: Session, writes: Sequence[CellWrite]) -> list[pa.RecordBatch]:
    """Write cells with new rows, of which no instance has a result before it closes."""
    for one in writes:
        one.write(session)
    return []

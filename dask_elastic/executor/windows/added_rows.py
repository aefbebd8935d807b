"""Adds rows to their cells: to slices, which are in their places unless these are occupied, or to instances."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cell_writes import CellWrite
from dask_elastic.executor.windows.cells import Assigned, EventCells, Numbers
from dask_elastic.executor.windows.known_cells import CellsOfRows, KnownCells
from dask_elastic.executor.windows.session_cells import SessionCells, bounds_of_rows
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.timed_rows import part_of_rows
from dask_elastic.routing.hashing import checks_of
from dask_elastic.state.index import Words
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column
from dask_elastic.state.window_fields import NO_END
from dask_elastic.state.windows.instance_marks import marked
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.chosen_rows import ChosenRows

Rows: TypeAlias = pa.RecordBatch | ChosenRows


class AddedRows:
    """Adds rows to the cells of one task; nothing is written. Not shared between threads.

    Parameters
    ----------
    operator : Compute
        The operator.
    cells : EventCells or SessionCells
        Its cells.
    known : KnownCells
        The slots of cells that the task has used.
    session : Session
        The task's session with the store.
    """

    def __init__(
        self, operator: Compute, cells: EventCells | SessionCells, known: KnownCells, session: Session
    ) -> None:
        self._key_columns = operator.keys
        self._cells = cells
        self._known = known
        self._session = session

    def located(
        self, bound: BoundWindows, rows: Rows, hashes: Words, assigned: Assigned, numbers: Numbers
    ) -> CellsOfRows:
        """Return where the cells of rows are stored, under given numbers."""
        checks = checks_of(rows, bound.keys, self._key_columns)
        return self._known.locate(rows, self._key_columns, hashes, checks, numbers, assigned.cells)

    def in_places(
        self, bound: BoundWindows, rows: Rows, hashes: Words, assigned: Assigned, places: SlicePlaces
    ) -> list[CellWrite]:
        """Add rows to their slices, which are in their places unless these are occupied."""
        # One that raises must leave the state as it was.
        writes: list[CellWrite] = []
        while len(hashes):
            of_slices = places.of(assigned.numbers)
            distinct, first = np.unique(of_slices, return_index=True)
            if len(distinct) < len(of_slices) and assigned.cells is not None:
                # Slices far from each other have one place.
                apart = np.ones(len(of_slices), np.bool_)
                apart[first] = False
                chosen = apart.take(assigned.cells)
                if chosen.any():
                    writes.append(self.apart(bound, *part_of_rows(rows, hashes, assigned, chosen), places))
                    rows, hashes, assigned = part_of_rows(rows, hashes, assigned, ~chosen)
                    continue
            found = self.located(bound, rows, hashes, assigned, of_slices)
            numbers = assigned.numbers.take(first.take(np.searchsorted(distinct, found.numbers)))
            starts = places.starts(numbers)
            occupied = places.occupied(bound, found, starts)
            if not occupied.any():
                writes.append(self._changes(bound, rows, assigned, found, numbers, starts))
                places.changed(numbers)
                break
            if not places.move(np.unique(numbers[occupied])):
                chosen = occupied.take(found.located.grouping.ordinals)
                writes.append(self.apart(bound, *part_of_rows(rows, hashes, assigned, chosen), places))
                rows, hashes, assigned = part_of_rows(rows, hashes, assigned, ~chosen)
        return writes

    def apart(
        self, bound: BoundWindows, rows: Rows, hashes: Words, assigned: Assigned, places: SlicePlaces
    ) -> CellWrite:
        """Add rows to cells outside places: slices, or instances."""
        found = self.located(bound, rows, hashes, assigned, assigned.numbers)
        places.added_apart()
        starts = None if assigned.of_instances else places.starts(found.numbers)
        return self._changes(bound, rows, assigned, found, found.numbers, starts)

    def _changes(
        self,
        bound: BoundWindows,
        rows: Rows,
        assigned: Assigned,
        found: CellsOfRows,
        numbers: Numbers,
        starts: Numbers | None,
    ) -> CellWrite:
        current = self._session.gather(found.located)
        after = self.to(bound, rows, assigned, found, list(current), starts)
        return CellWrite(rows, found, numbers, current, after)

    def to(
        self,
        bound: BoundWindows,
        rows: Rows,
        assigned: Assigned,
        found: CellsOfRows,
        current: list[Column],
        starts: Numbers | None = None,
    ) -> list[Column]:
        """Return the values of cells with new rows, given those before; with `starts`, those of slices."""
        located = found.located
        after = bound.bundle.update(current[: bound.own], rows, located.grouping)
        own = current[bound.own :]
        known = own[1] != NO_END
        if isinstance(self._cells, SessionCells):
            own[:2] = bounds_of_rows(assigned.starts, located, known, own)
        if not known.all():
            if starts is not None:
                assert isinstance(self._cells, EventCells)
                own[:2] = starts, starts + self._cells.slice
            elif isinstance(self._cells, EventCells):
                cells = assigned.of_groups(located)
                own[:2] = assigned.starts.take(cells), assigned.ends.take(cells)
            if self._cells.merges:
                own[2:4] = found.identities()
                if assigned.of_instances:
                    own[0] = marked(own[0])
        return after + own

"""Partials that the earlier owner of a shard has handed over, as rows that are added to cells by merging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import Assigned, EventCells
from dask_elastic.executor.windows.event_times import timestamps
from dask_elastic.state.codec import decode
from dask_elastic.state.index import Words
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.window_fields import NO_END
from dask_elastic.state.windows.instance_marks import has_mark, unmarked
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.row_counts import RowCounts

POSITION = "__position"
"""The column of rows that stand for partials, with their positions."""

Positions = npt.NDArray[np.int64]


class HandedPartials:
    """Decoded partials of one shard.

    Parameters
    ----------
    bound : BoundWindows
        What the logic derives from the input schema.
    state : RecordBatch
        The encoded partials.
    keys : sequence of str
        The key columns.

    Attributes
    ----------
    bound : BoundWindows
        The same, for rows that stand for partials: an update merges the partials.
    rows : RecordBatch
        The key and the cell of each partial.
    """

    def __init__(self, bound: BoundWindows, state: pa.RecordBatch, keys: Sequence[str]) -> None:
        found = decode(state)
        self._keys = tuple(keys)
        self._hashes, self._checks = np.asarray(found.hashes), np.asarray(found.checks)
        self._values = list(found.values)
        self._own = bound.own
        self._key_rows = found.keys
        partials: Bundle = MergedPartials(bound.bundle, self._values[: bound.own])  # type: ignore[assignment]
        self.bound = bound._replace(bundle=partials, keys=[*range(len(self._keys))])
        starts, ends = self._values[bound.own : bound.own + 2]
        self._of_instances = has_mark(starts)
        spans = [timestamps(unmarked(starts), bound.time), timestamps(ends, bound.time)]
        self.rows = pa.RecordBatch.from_arrays(
            [*found.keys.columns, *spans], names=[*self._keys, WINDOW_START, WINDOW_END]
        )

    def distinct(self) -> Iterator[Positions]:
        """Yield all positions in parts, in each of which every cell of a key is once, of slices or of instances."""
        # A part is merged as a unit, and both kinds are merged differently.
        for of_instances in (False, True):
            yield from self._distinct(np.flatnonzero(self._of_instances == of_instances))

    def _distinct(self, left: Positions) -> Iterator[Positions]:
        if len(self._values) > self._own + 2:
            columns = [self._values[self._own], *self._values[self._own + 2 :]]
        else:
            columns = [self._hashes, self._checks]
        while len(left):
            cells = np.stack([column.take(left).view(np.int64) for column in columns])
            first = np.unique(cells, axis=1, return_index=True)[1]
            yield left[np.sort(first)]
            left = np.delete(left, first)

    def of_instances(self, chosen: Positions) -> bool:
        """Return whether some partials, which `distinct` returned together, are of instances in the place of slices."""
        return bool(self._of_instances.take(chosen).any())

    def in_slices(self, chosen: Positions, cells: EventCells) -> tuple[pa.RecordBatch, Words, Assigned]:
        """Return some partials of slices as rows, the hashes of their keys, and their slices."""
        starts = self._values[self._own].take(chosen)
        hashes = self._values[self._own + 2].take(chosen)
        numbers, index = np.unique((starts - cells.offset) // cells.slice, return_inverse=True)
        begins = cells.offset + numbers * cells.slice
        of_rows = None if len(numbers) == 1 else index.reshape(-1)
        closed = np.zeros(len(numbers), np.bool_)
        assigned = Assigned(None, of_rows, numbers, begins, begins + cells.slice, closed, RowCounts(), None)
        return self._as_rows(chosen), hashes, assigned

    def merge_into(self, session: Session, chosen: Positions) -> None:
        """Merge some partials of instances into those that have the same identity; the others are only written."""
        located = self._located(session, chosen)
        positions = chosen.take(located.first)
        (ends,) = session.gather(located, [self._own + 1])
        new = ends == NO_END
        if not new.all():
            # A merge that raises leaves the state as it was, so that it may be repeated without others.
            self._merge_known(session, positions[~new] if new.any() else chosen)
        if new.any():
            session.scatter(located, [column.take(positions) for column in self._values], new)

    def _merge_known(self, session: Session, chosen: Positions) -> None:
        located = self._located(session, chosen)

        def update(current: list[Column]) -> list[Column]:
            merged = self.bound.bundle.update(current[: self._own], self._as_rows(chosen), located.grouping)
            return merged + current[self._own :]

        session.apply(located, update)

    def _located(self, session: Session, chosen: Positions) -> Located:
        checks = self._checks.take(chosen)
        return session.locate(
            self._as_rows(chosen), self._keys, self._hashes.take(chosen), checks if checks.any() else None
        )

    def _as_rows(self, chosen: Positions) -> pa.RecordBatch:
        taken = self._key_rows.take(array_of(chosen))
        return pa.RecordBatch.from_arrays([*taken.columns, array_of(chosen)], names=[*self._keys, POSITION])


class MergedPartials:
    """In place of the aggregates: an update with rows that stand for partials merges these.

    Parameters
    ----------
    bundle : Bundle
        The aggregates.
    values : sequence of (ndarray or Ragged)
        Their state, one element for each partial.
    """

    def __init__(self, bundle: Bundle, values: Sequence[Column]) -> None:
        self._bundle = bundle
        self._values = values

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the aggregates' state."""
        return self._bundle.fields

    def update(self, current: Sequence[Column], rows: pa.RecordBatch | ChosenRows, grouping: Grouping) -> list[Column]:
        """Return the state of groups after the partials of some rows, of which each group has one."""
        assert isinstance(rows, pa.RecordBatch)
        positions = numpy_of(rows.column(POSITION)).take(grouping.rows)
        return self._bundle.merge(current, [column.take(positions) for column in self._values])

"""Results of open instances that share slices: those which a batch has changed, consolidated from their slices.

Notes
-----
Decision 103. Slices of several instances are read once for a batch, for the keys of its rows alone, and merged as when
instances close: each about three times, whatever the number of slices in an instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import Numbers
from dask_elastic.executor.windows.known_cells import CellsOfRows, keys_at
from dask_elastic.executor.windows.partials import placed
from dask_elastic.executor.windows.running_merges import Merged, RunningMerges
from dask_elastic.executor.windows.slices_of_keys import MOST_LOOKUPS, SlicesOfKeys
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import distinct_keys
from dask_elastic.state.session import Session
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column
from dask_elastic.state.window_fields import NO_END
from dask_elastic.topology.aggregates.ragged import joined_columns, spans
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.gather import take_rows
from dask_elastic.vocab.state_record import END_OF_TIME


class SliceWrite(NamedTuple):
    """New values of the slices that some rows are in, which are not written yet.

    Parameters
    ----------
    rows : RecordBatch or ChosenRows
        The rows.
    found : CellsOfRows
        Where their slices are.
    numbers : ndarray of int64
        The number of each of these slices.
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
        """Write the values of before, given the position of the slices' ends; new slices have no state again."""
        fresh = np.asarray(self.before[end]) == NO_END
        self._scatter(session, self.before, self.after, ~fresh)
        located = self.found.located
        while not session.remove(Found(located.slots, located.layout, []), fresh):
            # Their slots have other numbers by now.
            session.gather(located, [end])

    def _scatter(self, session: Session, values: list[Column], others: list[Column], where: Mask | None = None) -> None:
        changes = [None if value is other else value for value, other in zip(values, others, strict=True)]
        session.scatter(self.found.located, changes, where)


def write_slices(session: Session, writes: Sequence[SliceWrite]) -> list[pa.RecordBatch]:
    """Write slices with new rows, of which no instance has a result before it closes."""
    for one in writes:
        one.write(session)
    return []


class _Touched(NamedTuple):
    """The keys of a batch, and the slices with new rows, each by the position of its key and its number."""

    keys: pa.RecordBatch
    hashes: Words
    checks: Words
    positions: Slots
    numbers: Numbers

    @classmethod
    def of(cls, writes: Sequence[SliceWrite], names: Sequence[str]) -> _Touched:
        identities = [one.found.identities() for one in writes]
        hashes, checks = (np.concatenate(words) for words in zip(*identities, strict=True))
        parts = [keys_at(one.rows, names, one.found.located.first) for one in writes]
        keys = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        first, positions = distinct_keys(hashes, checks if checks.any() else None)
        numbers = np.concatenate([one.numbers for one in writes])
        return cls(take_rows(keys, first), hashes.take(first), checks.take(first), positions, numbers)

    def within(self, first: int, last: int) -> Slots:
        """Return the keys with new rows in an instance, given its first slice and the one behind its last."""
        found = np.zeros(self.keys.num_rows, np.bool_)
        found[self.positions[(self.numbers >= first) & (self.numbers < last)]] = True
        return np.flatnonzero(found)


class UpdatedSlices(SlicesOfKeys):
    """Writes the slices of one task, and makes the results of the open instances that these change; not shared."""

    def write(self, bound: BoundWindows, writes: Sequence[SliceWrite], reached: int) -> list[pa.RecordBatch]:
        """Write slices with new rows.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        writes : sequence of SliceWrite
            Different slices.
        reached : int
            The event time up to which instances are closed.

        Returns
        -------
        list of RecordBatch
            One batch with a result for each key and each open instance of which a slice has new rows, or none.

        Raises
        ------
        Exception
            What the aggregates raise. The slices are as they were then.
        """
        write_slices(self._session, writes)
        try:
            return self._results(bound, _Touched.of(writes, self._keys), reached) if writes else []
        except Exception:
            # Its rows may be processed again without those that raise.
            for one in writes:
                one.undo(self._session, bound.own + 1)
            raise

    def _results(self, bound: BoundWindows, touched: _Touched, reached: int) -> list[pa.RecordBatch]:
        size, offset = self._slices.slice, self._slices.offset
        due = self._slices.closing(self._places.starts(np.unique(touched.numbers)), reached, END_OF_TIME)
        if not due:
            return []
        bounds = np.array(due, np.int64)
        firsts, lasts = ((bounds - offset) // size).T
        slices = self._read(bound, touched, np.unique(spans(firsts, lasts - firsts)))
        running: dict[int, RunningMerges] = {}
        parts: list[list[Column]] = []
        chosen: list[Slots] = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            merges = running.setdefault(last - first, RunningMerges(bound.bundle, slices.__getitem__))
            merged = merges.of(first, last)
            chosen.append(touched.within(first, last))
            parts.append([column.take(chosen[-1]) for column in merged.values])
        values = [joined_columns(columns) for columns in zip(*parts, strict=True)]
        keys = take_rows(touched.keys, np.concatenate(chosen))
        starts, ends = np.repeat(bounds, [len(one) for one in chosen], axis=0).T
        return [bound.batch(keys.columns, starts.copy(), ends.copy(), values, -1)]

    def _read(self, bound: BoundWindows, touched: _Touched, numbers: Numbers) -> dict[int, Merged]:
        """Return the state of slices by key."""
        count = touched.keys.num_rows
        step = max(1, MOST_LOOKUPS // count)
        found: dict[int, Merged] = {}
        for begin in range(0, len(numbers), step):
            part = numbers[begin : begin + step]
            of_key = np.tile(np.arange(count), len(part))
            hashes, checks = touched.hashes.take(of_key), touched.checks.take(of_key)
            values, owners = self._merged(bound, hashes, checks, np.repeat(part, count), np.arange(len(of_key)))
            edges = np.searchsorted(owners, np.arange(len(part) + 1) * count)
            for position, number in enumerate(part.tolist()):
                inside = np.arange(edges[position], edges[position + 1])
                found[number] = _by_key(bound, values, inside, owners.take(inside) - position * count, count)
        return found


def _by_key(bound: BoundWindows, values: list[Column], inside: Slots, keys: Slots, count: int) -> Merged:
    """Return state as that of all keys, most of which may have none."""
    present: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
    present[keys] = True
    columns = [column.take(inside) for column in values]
    if len(inside) < count:
        fields = bound.bundle.fields
        columns = [placed(one.initially(count), new, keys) for one, new in zip(fields, columns, strict=True)]
    return Merged(columns, present)

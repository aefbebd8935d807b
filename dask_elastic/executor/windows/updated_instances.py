"""Results of open instances that a batch has changed, in jobs whose windows share slices or have done so.

Notes
-----
Decisions 103 and 105. Slices of several instances are read once for a batch, for the keys of its rows alone, and merged
as when instances close: each about three times, whatever the number of slices in an instance. A job that changes its
plan has partials of slices and of instances for some time; a result is merged from both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cell_writes import CellWrite, write_cells
from dask_elastic.executor.windows.cells import EventCells, Numbers
from dask_elastic.executor.windows.known_cells import keys_at
from dask_elastic.executor.windows.partial_kinds import PartialKinds
from dask_elastic.executor.windows.running_merges import Merged, RunningMerges, by_key, merge
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.slices_of_keys import MOST_LOOKUPS, SlicesOfKeys
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import distinct_keys
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.windows.instance_marks import marked, unmarked
from dask_elastic.topology.aggregates.ragged import joined_columns, spans
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.gather import take_rows
from dask_elastic.vocab.state_record import END_OF_TIME
from dask_elastic.vocab.window_costs import WindowCosts, update_lookups

_DENSE = 8
"""Results are counted by instance, not sorted, if there are up to so many times as many instances."""


class _Touched(NamedTuple):
    """The keys of a batch, and the cells with new rows, each by the position of its key and its number."""

    keys: pa.RecordBatch
    hashes: Words
    checks: Words
    positions: Slots
    numbers: Numbers

    @classmethod
    def of(cls, writes: Sequence[CellWrite], names: Sequence[str]) -> _Touched:
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


class _Changed(NamedTuple):
    """Open instances with new rows, in the order of ends and begins, and the keys with new rows in each."""

    bounds: Numbers
    chosen: list[Slots]

    def repeated(self) -> tuple[Numbers, Numbers, Slots]:
        """Return begin, end and key of each pair of an instance and a key."""
        starts, ends = np.repeat(self.bounds, [len(one) for one in self.chosen], axis=0).T
        return starts.copy(), ends.copy(), np.concatenate(self.chosen)


class UpdatedInstances(SlicesOfKeys):
    """Writes the cells of one task, and makes the results of the open instances that these change; not shared.

    Parameters
    ----------
    operator : Compute
        A compute with windows that may share slices, and updates.
    store : KeyedStore
        The store.
    session : Session
        The task's session with it.
    places : SlicePlaces
        Where its slices are.
    groups : int
        The number of groups of the component's key space.
    kinds : PartialKinds
        Up to which event time the task may have partials of either kind.
    clock : callable
        Returns the CPU seconds of the thread.
    """

    def __init__(
        self,
        operator: Compute,
        store: KeyedStore,
        session: Session,
        places: SlicePlaces,
        groups: int,
        kinds: PartialKinds,
        clock: Callable[[], float],
    ) -> None:
        assert operator.windowing is not None
        super().__init__(operator.windowing, operator.keys, store, session, places, groups)
        self._instances = EventCells(operator.windowing, separate=True)
        self._kinds = kinds
        self._clock = clock
        self._costs = WindowCosts()

    def take_costs(self) -> WindowCosts:
        """Return what results have cost since the last call."""
        costs, self._costs = self._costs, WindowCosts()
        return costs

    def write(self, bound: BoundWindows, writes: Sequence[CellWrite], reached: int) -> list[pa.RecordBatch]:
        """Write slices with new rows.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        writes : sequence of CellWrite
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
        if not writes:
            return []
        with _Undone(self._session, bound, writes):
            return self._results(bound, _Touched.of(writes, self._keys), reached)

    def write_instances(self, bound: BoundWindows, write: CellWrite) -> list[pa.RecordBatch]:
        """Write instances with new rows, where others are slices; see `write`.

        All of them are open.
        """
        starts, ends = unmarked(np.asarray(write.after[bound.own])), np.asarray(write.after[bound.own + 1])
        with _Undone(self._session, bound, [write]):
            values = write.after[: bound.own]
            if self._kinds.last_end(bound, of_instances=False) > int(starts.min()):
                return self._with_slices(bound, write, starts, ends, values)
            began = self._clock()
            keys = keys_at(write.rows, self._keys, write.found.located.first)
            outputs = [bound.batch(keys.columns, starts, ends, values, -1)]
            self._costs = update_costs(self._slices, starts, ends, self._clock() - began)
            return outputs

    def _with_slices(
        self, bound: BoundWindows, write: CellWrite, starts: Numbers, ends: Numbers, values: list[Column]
    ) -> list[pa.RecordBatch]:
        """Return the results of instances with partials of their own, merged with the slices that there are."""
        began = self._clock()
        touched = _Touched.of([write], self._keys)
        # In the order of ends, begins and keys.
        order = np.lexsort((touched.positions, starts, ends))
        bounds, lengths = np.unique(np.stack([ends, starts], axis=1), axis=0, return_counts=True)
        chosen = np.split(touched.positions.take(order), np.cumsum(lengths)[:-1])
        changed = _Changed(np.ascontiguousarray(bounds[:, ::-1]), chosen)
        own = Merged([column.take(order) for column in values], np.ones(len(order), np.bool_))
        merged = merge(bound.bundle, self._of_slices(bound, touched, changed)[0], own)
        consolidated = self._clock()
        outputs = self._shown(bound, touched, changed, merged.values)
        found = update_costs(self._slices, starts, ends, self._clock() - consolidated)
        # It takes more than a consolidation from slices alone, for a while.
        self._costs = found._replace(looked=found.lookups, consolidating=consolidated - began)
        return outputs

    def _results(self, bound: BoundWindows, touched: _Touched, reached: int) -> list[pa.RecordBatch]:
        began = self._clock()
        due = self._slices.closing(self._places.starts(np.unique(touched.numbers)), reached, END_OF_TIME)
        if not due:
            return []
        bounds = np.array(due, np.int64)
        firsts, lasts = ((bounds - self._slices.offset) // self._slices.slice).T
        chosen = [touched.within(*pair) for pair in zip(firsts.tolist(), lasts.tolist(), strict=True)]
        changed = _Changed(bounds, chosen)
        merged, slices = self._of_slices(bound, touched, changed)
        if self._kinds.last_end(bound, of_instances=True) >= int(bounds[:, 1].min()):
            merged = merge(bound.bundle, merged, self._of_own(bound, touched, changed))
        consolidated = self._clock()
        outputs = self._shown(bound, touched, changed, merged.values)
        lookups = update_lookups(touched.keys.num_rows, slices, len(bounds))
        self._costs = WindowCosts(
            updates=sum(map(len, chosen)),
            emitting=self._clock() - consolidated,
            lookups=lookups,
            looked=lookups,
            consolidating=consolidated - began,
        )
        return outputs

    def _shown(
        self, bound: BoundWindows, touched: _Touched, changed: _Changed, values: list[Column]
    ) -> list[pa.RecordBatch]:
        starts, ends, keys = changed.repeated()
        return [bound.batch(take_rows(touched.keys, keys).columns, starts, ends, values, -1)]

    def _of_slices(self, bound: BoundWindows, touched: _Touched, changed: _Changed) -> tuple[Merged, int]:
        """Return the state of instances by key, merged from slices; and the number of slices."""
        firsts, lasts = ((changed.bounds - self._slices.offset) // self._slices.slice).T
        numbers = np.unique(spans(firsts, lasts - firsts))
        slices = self._read(bound, touched, numbers)
        running: dict[int, RunningMerges] = {}
        parts: list[list[Column]] = []
        present: list[npt.NDArray[np.bool_]] = []
        for first, last, keys in zip(firsts.tolist(), lasts.tolist(), changed.chosen, strict=True):
            merged = running.setdefault(last - first, RunningMerges(bound.bundle, slices.__getitem__)).of(first, last)
            parts.append([column.take(keys) for column in merged.values])
            present.append(merged.present.take(keys))
        values = [joined_columns(columns) for columns in zip(*parts, strict=True)]
        return Merged(values, np.concatenate(present)), len(numbers)

    def _of_own(self, bound: BoundWindows, touched: _Touched, changed: _Changed) -> Merged:
        """Return the partials that instances have of their own, by key."""
        starts, ends, keys = changed.repeated()
        numbers = self._instances.numbers_of(starts, ends)
        hashes, checks = touched.hashes.take(keys), touched.checks.take(keys)
        parts = part_hashes(hashes, numbers, self._groups), part_checks(checks, numbers, len(hashes))
        shards = np.ones(self._store.shards, np.bool_)
        while True:
            layout, slots = self._store.find(*parts)
            found = np.flatnonzero(slots >= 0)
            read = self._session.values_at(slots.take(found), layout, shards, slice(bound.own + 1))
            if read is not None:
                break
        values, live = read
        live &= np.asarray(values.pop()) == marked(starts.take(found))
        inside = np.flatnonzero(live)
        return by_key(bound.bundle, values, inside, found.take(inside), len(keys))

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
                found[number] = by_key(bound.bundle, values, inside, owners.take(inside) - position * count, count)
        return found


class _Undone:
    """Writes cells; inside a `with`, an exception takes them back.

    The rows of a batch may be processed again without those that raise.
    """

    def __init__(self, session: Session, bound: BoundWindows, writes: Sequence[CellWrite]) -> None:
        self._session = session
        self._end = bound.own + 1
        self._writes = writes

    def __enter__(self) -> None:
        write_cells(self._session, self._writes)

    def __exit__(self, kind: type[BaseException] | None, *args: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            for one in self._writes:
                one.undo(self._session, self._end)


def update_costs(cells: EventCells, starts: Numbers, ends: Numbers, seconds: float) -> WindowCosts:
    """Return what results of open instances cost that have partials of their own.

    Parameters
    ----------
    cells : EventCells
        The slices that instances consist of, or would if they shared any.
    starts, ends : ndarray of int64
        The instance of each result.
    seconds : float
        The CPU seconds of making rows of them.

    Returns
    -------
    WindowCosts
        The costs, with the lookups that updates from slices would take. The keys are those of the instance with the
        most results: a batch is short compared with instances, so that hardly any key lacks one in it.
    """
    first, lengths = int(starts.min()), sorted({window.length for window in cells.windows})
    numbers = (starts - first) // cells.slice
    if len(lengths) > 1:
        numbers = numbers * len(lengths) + np.searchsorted(lengths, ends - starts)
    if int(numbers.max()) > _DENSE * len(numbers):
        numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1)
    keys = np.bincount(numbers)
    instances = int(np.count_nonzero(keys))
    # Rows far from each other have slices of their own, with nothing between.
    slices = min(int(ends.max()) - first, instances * lengths[-1]) // cells.slice
    return WindowCosts(
        updates=len(starts), emitting=seconds, lookups=update_lookups(int(keys.max()), slices, instances)
    )

"""What a task does for a state record: it calls the functions of the timers that are due, and frees expired state."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.executor.error_policy import ErrorPolicy, Errors, error_text
from dask_elastic.executor.function_logic import (
    SWEPT_AFTER,
    CellLogic,
    FunctionLogic,
    KeyFunctionLogic,
    note_key,
)
from dask_elastic.executor.row_search import is_failure_of_row
from dask_elastic.state.cells import Cells
from dask_elastic.state.expiry.times import ExpiryTimes
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.timer_bounds import NEVER
from dask_elastic.state.view import StateView
from dask_elastic.topology.logic_level import KeyLogic
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.timer import DUE, Timer
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.python_values import python_columns
from dask_elastic.vocab.state_record import TimersDue


class TimerFunctionLogic(KeyFunctionLogic):
    """The function of a timer, called for each key whose timer has fired; each row of a batch is another key."""

    def items(self, rows: pa.RecordBatch, view: StateView, cells: Cells, errors: Errors | None = None) -> list[Any]:
        """Call the function key by key; returns dicts and lists of batches."""
        made: list[Any] = []
        columns = python_columns(view.keys)
        keys: Iterable[Any] = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
        log = cells.log
        for position, (key, time) in enumerate(zip(keys, rows.column(DUE).to_pylist(), strict=True)):
            if self.time is not None:
                view.times.call_at(float(view.times.rows[position]))
            try:
                made += self._items(self._function(key, time, cells.key(position)))
            except Exception as error:
                if log is None or errors is None or not is_failure_of_row(error):
                    note_key(error, key)
                    raise
                log.roll_back()
                errors[position] = error_text(error)
            if log is not None:
                log.keep()
        return made


class _Candidates(NamedTuple):
    """Keys that may have a timer that is due; `fired` says which timers of each have fired, one row per timer."""

    keys: pa.RecordBatch
    hashes: npt.NDArray[np.uint64]
    checks: npt.NDArray[np.uint64]
    fired: npt.NDArray[np.bool_]

    def chosen(self, mask: npt.NDArray[np.bool_]) -> _Candidates:
        if mask.all():
            return self
        return _Candidates(self.keys.filter(array_of(mask)), self.hashes[mask], self.checks[mask], self.fired[:, mask])


class TimerLogic:
    """Fires the timers of one task; not shared between threads.

    Parameters
    ----------
    operator : Compute
        The operator, whose logic is a function.
    logic : FunctionLogic
        The logic that sets the timers.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.

    Notes
    -----
    The timers of a key fire in the order of their times, those with the same time in the order of their declaration.
    Timers fire in rounds, each with the earliest timer of each key that has one: what a function sets or deletes for
    its key counts in the next round. Within a round, and for each timer, keys come in the order of time, then key.
    """

    def __init__(self, operator: Compute, logic: FunctionLogic, store: KeyedStore, session: Session):
        self.operator = operator
        self._session = session
        self._layout = logic.layout
        self._bounds = logic.timer_bounds
        timers = operator.timers or {}
        self._clocks = {name: timer.clock for name, timer in timers.items()}
        self._logics = {name: _logic_of(timer, name, operator, logic, store, session) for name, timer in timers.items()}
        self._store = store

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Fire the timers that a state record makes due, for the shards that it is addressed to.

        Parameters
        ----------
        batch : Batch
            The state record.
        policy : ErrorPolicy
            Runs the functions. A timer whose function raises has fired; a dead letter has its key and its time.

        Returns
        -------
        list of RecordBatch
            What the functions have returned.
        """
        record = batch.record
        assert isinstance(record, TimersDue)
        limits = {name: at for name, clock in self._clocks.items() if (at := record.limit(clock)) is not None}
        if self._store.key_schema is None or not self._bounds.reached(limits):
            return []
        search = partial(self._bounds.search, limits=limits, shards=_shards_of(batch, self._store))
        keys, hashes, checks = self._session.search(search)
        if not keys.num_rows:
            return []
        all_due = _Candidates(keys, hashes, checks, np.zeros((len(limits), keys.num_rows), np.bool_))
        outputs: list[pa.RecordBatch] = []
        left: _Candidates | None = all_due
        while left is not None:
            left = self._round(left, limits, record.last, batch, policy, outputs)
        self._tidy(all_due, batch, drop=[*limits] if record.last else [])
        return outputs

    def _round(
        self,
        candidates: _Candidates,
        limits: dict[str, int],
        once: bool,
        batch: Batch,
        policy: ErrorPolicy,
        outputs: list[pa.RecordBatch],
    ) -> _Candidates | None:
        """Fire the earliest timer of each key; returns the keys that had one, None if no key had."""
        times = self._times(candidates, limits)
        if once:
            times[candidates.fired] = NEVER
        first = times.argmin(axis=0)
        earliest = times.min(axis=0)
        due = earliest < NEVER
        if not due.any():
            return None
        candidates, first, earliest = candidates.chosen(due), first[due], earliest[due]
        candidates.fired[first, np.arange(len(first))] = True
        self._clear(self._located(candidates), {name: first == i for i, name in enumerate(limits)})
        for number, name in enumerate(limits):
            positions = np.flatnonzero(first == number)
            if len(positions):
                outputs += self._call(name, candidates, positions, earliest[positions], batch, policy)
        return candidates

    def _located(self, candidates: _Candidates) -> Located:
        checks = candidates.checks if candidates.checks.any() else None
        return self._session.locate(candidates.keys, self.operator.keys, candidates.hashes, checks)

    def _times(self, candidates: _Candidates, limits: dict[str, int]) -> npt.NDArray[np.int64]:
        """Return the time of each timer that is due, one row per timer, `NEVER` for all others."""
        spans = [self._layout.spans[self._layout.timers[name]] for name in limits]
        values = self._session.gather(self._located(candidates), [field for span in spans for field in span])
        found = [
            np.where(known & (times.view(np.int64) <= limit), times.view(np.int64), NEVER)
            for times, known, limit in zip(values[::2], values[1::2], limits.values(), strict=True)
        ]
        return np.stack(found)

    def _clear(self, located: Located, chosen: dict[str, npt.NDArray[np.bool_]]) -> None:
        """Clear timers of located keys."""
        changes: list[Column | None] = [None] * len(self._layout.fields)
        for name, keys in chosen.items():
            if keys.any():
                known = self._layout.spans[self._layout.timers[name]].start + 1
                changes[known] = self._session.gather(located, [known])[0] & ~keys
        self._session.scatter(located, changes)

    def _call(
        self,
        name: str,
        candidates: _Candidates,
        positions: npt.NDArray[np.intp],
        times: npt.NDArray[np.int64],
        batch: Batch,
        policy: ErrorPolicy,
    ) -> list[pa.RecordBatch]:
        due = array_of(times.view("M8[us]"))
        rows = candidates.keys.take(array_of(positions)).append_column(DUE, due)
        order = pc.sort_indices(rows, [(DUE, "ascending"), *((key, "ascending") for key in self.operator.keys)])
        rows, hashes = rows.take(order), candidates.hashes[positions][numpy_of(order)]
        logic = self._logics[name]

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            part = rows.slice(start, stop - start)
            return logic.process(part, hashes[start:stop], batch.now, errors, reached=batch.reached)

        return policy.run(self.operator.name, run, rows)

    def _tidy(self, candidates: _Candidates, batch: Batch, drop: Iterable[str]) -> None:
        """Remove keys without any state; before that, clear the timers to `drop`."""
        located = self._located(candidates)
        every = np.ones(len(located), np.bool_)
        if dropped := dict.fromkeys(drop, every):
            self._clear(located, dropped)
        if self._session.prune(located, self._remaining, ExpiryTimes(batch.now - SWEPT_AFTER)):
            self._session.tidy()

    def _remaining(
        self, values: list[Column], count: int, times: ExpiryTimes
    ) -> tuple[list[Column], npt.NDArray[np.bool_]]:
        left = self._layout.unexpired(values, times)
        return left, self._layout.has_any(left, count)


class EventExpiry:
    """Frees the state of one task that has expired in event time, behind the timers that a state record fires.

    Parameters
    ----------
    logic : FunctionLogic
        The logic whose state expires.
    store : KeyedStore
        The state of the executor in this process.
    timers : TimerLogic or None
        Fires the timers of the operator; None if it has none.

    Notes
    -----
    It does so behind the timers, which see what had not expired at their times.
    """

    def __init__(self, logic: FunctionLogic, store: KeyedStore, timers: TimerLogic | None) -> None:
        self._logic = logic
        self._store = store
        self._timers = timers

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Process a state record for the shards that it is addressed to; see `TimerLogic.fire`."""
        record = batch.record
        assert isinstance(record, TimersDue)
        outputs = [] if self._timers is None else self._timers.fire(batch, policy)
        # The end of the input is no event time: what has not expired by the last watermark stays readable.
        if record.event is not None and not record.last and self._store.key_schema is not None:
            self._logic.sweep(record.event, batch.now, _shards_of(batch, self._store))
        return outputs


def _shards_of(batch: Batch, store: KeyedStore) -> npt.NDArray[np.bool_]:
    """Return which shards a state record is addressed to."""
    shards = np.zeros(store.shards, np.bool_)
    shards[numpy_of(batch.rows.column(0))] = True
    return shards


def _logic_of(
    timer: Timer, name: str, operator: Compute, setting: FunctionLogic, store: KeyedStore, session: Session
) -> FunctionLogic:
    """Return the logic of a timer: called per key, or per batch if the logic that sets it is."""
    if isinstance(setting, CellLogic):
        logic: FunctionLogic = TimerFunctionLogic(KeyLogic(timer.function), operator, store, session)
        assert isinstance(logic, CellLogic)
        # Rows of all functions of an operator have the same columns.
        logic.output = setting.output
    else:
        logic = FunctionLogic(operator, store, session, timer.function)
    logic.where = f"compute {operator.name!r}, timer {name!r}"
    logic.timer_bounds = setting.timer_bounds
    logic.time = None if setting.time is None else DUE
    return logic

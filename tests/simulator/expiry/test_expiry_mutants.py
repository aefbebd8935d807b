"""Mutants of expiry in event time: the checks must find each injected fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from expiry_job import STATE
from expiry_scenario import ExpiryScenario

from dask_elastic.executor import timer_logic
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.function_logic import FunctionLogic
from dask_elastic.executor.fused.fused_compute import FusedCompute
from dask_elastic.executor.piece import Receipt
from dask_elastic.executor.task_queue import Work
from dask_elastic.executor.timer_logic import EventExpiry
from dask_elastic.simulator.checkpoints import ExecutorCut
from dask_elastic.state.expiry.times import BatchTimes
from dask_elastic.state.session import Session
from dask_elastic.state.slots import LIVE
from dask_elastic.state.value_column import ValueColumn
from dask_elastic.vocab.state_record import BEGINNING, END_OF_TIME

MOST_SEEDS = 100

TRIED_FIRST = (39, 74, 92)
"""Seeds in which replays find what most others do not."""


def rows_see_the_newest_watermark(monkeypatch):
    """State has expired by the event time when a task takes the rows, not when they arrived."""
    real = ElasticExecutor.take

    def take(self, task, now=0.0):
        taken = real(self, task, now)
        if taken is not None and isinstance(taken[1], Work):
            for piece in taken[1].pieces:
                piece.receipt.reached = self.records.stamp(self.store.event_time)
        return taken

    monkeypatch.setattr(ElasticExecutor, "take", take)


def replayed_rows_lose_their_watermark(monkeypatch):
    """Rows that are replayed after a loss are processed as if no watermark had arrived before."""
    real = Receipt.for_replay.__func__

    def for_replay(cls, origin, nbytes, batch, now):
        return real(cls, origin, nbytes, batch._replace(reached=BEGINNING), now)

    monkeypatch.setattr(Receipt, "for_replay", classmethod(for_replay))


def record_sweeps_all_shards(monkeypatch):
    """A record frees state of all shards of the task, also of those whose earlier rows wait or are replayed."""
    real = FunctionLogic.sweep
    monkeypatch.setattr(
        FunctionLogic, "sweep", lambda self, reached, now, shards: real(self, reached, now, shards | True)
    )


def sweep_precedes_the_timers(monkeypatch):
    """A record frees state before its timers fire."""
    real = EventExpiry.fire

    def fire(self, batch, policy):
        if self._store.key_schema is not None and not batch.record.last:
            self._logic.sweep(batch.record.event, batch.now, timer_logic._shards_of(batch, self._store))
        return real(self, batch, policy)

    monkeypatch.setattr(EventExpiry, "fire", fire)


def end_of_the_input_is_an_event_time(monkeypatch):
    """At the end of the input all state expires."""
    real = EventExpiry.fire

    def fire(self, batch, policy):
        outputs = real(self, batch, policy)
        if batch.record.last and self._store.key_schema is not None:
            self._logic.sweep(END_OF_TIME, batch.now, timer_logic._shards_of(batch, self._store))
        return outputs

    monkeypatch.setattr(EventExpiry, "fire", fire)


def rows_see_what_has_not_expired_by_the_watermark(monkeypatch):
    """Logic per row sees what had expired at the row's time, as the watermark had not reached it."""
    real = BatchTimes.call_at

    def call_at(self, time):
        real(self, time)
        self.seen = self.expired(STATE["total"])

    monkeypatch.setattr(BatchTimes, "call_at", call_at)


def late_rows_write_at_their_own_time(monkeypatch):
    """What a row writes that is older than the watermark expires earlier than that of other rows."""
    monkeypatch.setattr(BatchTimes, "rows", property(lambda self: self._rows.astype(np.float64)))


def older_row_shortens_the_life_of_a_value(monkeypatch):
    """A value expires by the time of the row that wrote it last, though an earlier one was newer."""
    monkeypatch.setattr(ValueColumn, "expiry", lambda self, position: -math.inf)
    monkeypatch.setattr(ValueColumn, "_until", lambda self: self.times.of_keys(self.kind))


def restart_forgets_the_event_time(monkeypatch):
    """After a restart, state expires by what the sources send then only."""
    real = ExecutorCut.__init__

    def init(self, state, changes, input_schema, event_time=None):
        real(self, state, changes, input_schema, None)

    monkeypatch.setattr(ExecutorCut, "__init__", init)


def removed_key_leaves_no_tombstone(monkeypatch):
    """The removal of a key whose state has expired is not tracked."""
    real = Session.sweep

    def sweep(self, start, count, remaining_of, times, shards=None):
        marks = self._store.slots.marks
        before = marks.copy()
        found = real(self, start, count, remaining_of, times, shards)
        marks[: len(before)][((before & LIVE) != 0) & ((marks[: len(before)] & LIVE) == 0)] = 0
        return found

    monkeypatch.setattr(Session, "sweep", sweep)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [0, 1, 2, *TRIED_FIRST, *range(MOST_SEEDS)]:
        if ExpiryScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")


def fused_rows_see_nothing_expired(monkeypatch):
    """Rows reach a fused compute without the event time at which they arrived."""
    real = FusedCompute.begin
    monkeypatch.setattr(FusedCompute, "begin", lambda self, batch: real(self, batch._replace(reached=BEGINNING)))


def fused_state_is_not_swept(monkeypatch):
    """What has expired in a fused compute is kept when the event time advances."""
    monkeypatch.setattr(FusedCompute, "fire", lambda self, batch: [])


@pytest.mark.parametrize("mutant", [fused_rows_see_nothing_expired, fused_state_is_not_swept])
def test_mutant_of_fused_computes_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    assert any(ExpiryScenario(seed, place="behind").fails() for seed in range(MOST_SEEDS))

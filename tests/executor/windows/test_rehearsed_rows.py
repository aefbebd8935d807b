"""Rehearsals measure what a row costs in an instance; they leave no state, and call no functions of users."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.windows import rehearsed_rows
from dask_elastic.executor.windows.rehearsed_rows import FIRST, MOST_INSTANCES, RehearsedRows
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns

SHARDS, TASK = 4, 1
SCHEMA = pa.schema({"key": pa.int64(), "at": pa.timestamp("us"), "value": pa.int64()})
BUILT_IN = {
    "rows": de.aggregate.Count(),
    "sum": de.aggregate.Sum("value"),
    "mean": de.aggregate.Mean("value"),
    "most": de.aggregate.Max("value"),
    "best": de.aggregate.TopK("value", 2),
    "kinds": de.aggregate.DistinctCount("value"),
}


def doubled(rows):
    return rows["value"]


FUNCTIONS = {
    "sum": de.aggregate.Sum(doubled, columns=["value"]),
    "most": de.aggregate.Max(doubled, columns=["value"]),
    "rows": de.aggregate.Count(doubled, columns=["value"]),
    "custom": de.aggregate.custom(
        ["value"], int, lambda acc, rows: acc + len(rows), int.__add__, lambda acc: acc, pa.int64()
    ),
}


def operator_of(aggregates, length="40us", **options):
    topology = de.Topology("rehearsals")
    stream = topology.source("rows", de.sources.Iterable(lambda: [], event_time="at")).key_by("key")
    window = de.windows.sliding(0, length, timedelta(microseconds=1))
    stream.window(window).compute(aggregates, name="out", emit="updates", **options)
    return topology.operator("out")


class Task:
    """A task that adds batches of a few rows; its clock ticks at each look."""

    def __init__(self, operator):
        self.store = PrimaryState(SHARDS, lambda hashes: (hashes % SHARDS).astype(int))
        for shard in range(SHARDS):
            self.store.grant(shard, TASK)
        self.logic = WindowLogic(operator, self.store, self.store.session(TASK), SHARDS, True)
        ticks = itertools.count()
        self.logic.clock = lambda: float(next(ticks))

    def rows(self, at, separate=False, values=None, keys=7):
        at = np.broadcast_to(at, 30 if np.ndim(at) == 0 else len(at))
        number = np.arange(len(at))
        columns = [number % keys if keys else 0 * number, pa.array(at, SCHEMA.field(1).type)]
        batch = pa.record_batch([*columns, number if values is None else pa.array(values)], SCHEMA)
        hashes = hash_columns(batch, ("key",))
        return self.logic.process(batch, hashes, reached=0, separate=separate)

    @property
    def state(self):
        used = self.store.slots.used
        return used, self.store.layout, [np.asarray(one[:used]).tolist() for one in self.store.slots.values[:2]]


@pytest.fixture
def always(monkeypatch):
    """Rehearse with each batch."""
    monkeypatch.setattr(rehearsed_rows, "FIRST", 0)
    monkeypatch.setattr(rehearsed_rows, "SHARE", 1e9)


@pytest.mark.parametrize("length", ["3us", "40us"])
def test_rehearsals_leave_no_state_and_no_results(length, always, monkeypatch):
    operator = operator_of(BUILT_IN, length)
    rehearsing, other = Task(operator), Task(operator)
    other.logic._rehearsed = None
    for at in (100, 101, 107, 90):
        assert rehearsing.rows(at) == other.rows(at)
        assert rehearsing.state == other.state
    costs = rehearsing.store.costs()
    # A row is in three instances, or is added to as many as rehearsals have at most.
    assert costs.tried == 4 * 30 * (2 if length == "3us" else MOST_INSTANCES - 1)
    assert other.store.costs().tried == 0


def test_first_rehearsal_is_after_some_batches_and_none_is_of_rows_of_instances():
    task = Task(operator_of(BUILT_IN))
    for _ in range(FIRST):
        task.rows(100)
    assert task.store.costs().tried == 0
    task.rows(100, separate=True)
    assert task.store.costs().tried == 0
    task.rows(100)
    assert task.store.costs().tried > 0


def test_rehearsals_that_take_long_are_rare(monkeypatch):
    task = Task(operator_of(BUILT_IN))
    monkeypatch.setattr(RehearsedRows, "_added", lambda self, *args: [self._clock() for _ in range(100)] and (9, 1.0))
    found = []
    for _ in range(60):
        task.rows(100)
        found.append(task.logic._rehearsed._spent)
    # The first one takes some hundred seconds, which the batches after it do not in fifty times as long.
    assert len({*found}) == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_users_are_not_rehearsed(name):
    assert not RehearsedRows.measures(operator_of({"rows": BUILT_IN["rows"], name: FUNCTIONS[name]}))


@pytest.mark.parametrize("options", [{"share": True}, {"share": False}])
def test_plans_that_never_change_are_not_rehearsed(options):
    assert RehearsedRows.measures(operator_of(BUILT_IN))
    assert not RehearsedRows.measures(operator_of(BUILT_IN, **options))
    operator = operator_of(BUILT_IN)
    assert not RehearsedRows.measures(replace(operator, windowing=None))


def test_batch_whose_rehearsal_raises_is_not_processed(always, monkeypatch):
    task = Task(operator_of(BUILT_IN))
    task.rows(100)
    before = task.state

    def failing(*args):
        raise MemoryError("no room for pairs")

    monkeypatch.setattr(RehearsedRows, "_added", failing)
    with pytest.raises(MemoryError):
        task.rows(100)
    assert task.state == before


def test_rows_far_from_each_other_are_as_few_pairs(always, monkeypatch):
    task = Task(operator_of({"rows": BUILT_IN["rows"]}, "600us"))
    pairs = []
    real = RehearsedRows._added

    def added(self, *args):
        found = real(self, *args)
        pairs.append(found[0])
        return found

    monkeypatch.setattr(RehearsedRows, "_added", added)
    for at in (np.arange(300) * 9, np.arange(300)[::-1] * 9, np.arange(300) % 2 * 2700):
        task.rows(at)
    assert 0 < max(pairs) <= 300 * MOST_INSTANCES


def test_sums_from_no_state_may_be_beyond_their_type(always):
    task = Task(operator_of({"sum": BUILT_IN["sum"]}))
    least = -(2**63)
    task.rows(np.full(2, 100), values=[least, 0], keys=0)
    assert task.store.costs().tried > 0
    found = task.rows(np.full(2, 100), values=[2**62, 2**62], keys=0)
    assert set(found[0]["sum"].to_pylist()) == {0}

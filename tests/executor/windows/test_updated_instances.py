"""Updates of windows that share slices are those of windows with a state for each instance."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.windows import updated_instances
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state import KeyedStore
from dask_elastic.vocab.state_record import TimersDue

GROUPS = 4
SCHEMA = pa.schema({"key": pa.string(), "at": pa.timestamp("us"), "value": pa.int64()})
WINDOWS = [
    [de.windows.sliding(0, "4us", "1us")],
    [de.windows.sliding("1us", "6us", "2us"), de.windows.sliding(0, "3us", "3us")],
    [de.windows.sliding(0, "4us", "2us"), de.windows.sliding("1us", "4us", "2us")],
]
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=12)
STEP = st.one_of(
    ROWS,
    st.integers(1, 9),
    st.tuples(st.just("record"), st.integers(1, 9)),
    st.tuples(st.just("move"), st.integers(0, GROUPS - 1), st.integers(1, 2)),
    st.just("pack"),
    st.just("restart"),
)
STEPS = st.lists(STEP, min_size=3, max_size=12)


def result_of(state):
    if 13 in state:
        raise ValueError("13 has no result")
    return sorted(state)


AGGREGATES = {
    "rows": de.aggregate.Count(),
    "kinds": de.aggregate.DistinctCount("value"),
    "values": de.aggregate.custom(
        ["value"],
        list,
        lambda acc, rows: acc + rows["value"].to_pylist(),
        list.__add__,
        result_of,
        pa.list_(pa.int64()),
    ),
}


class Tasks:
    """Two tasks with the windows of one compute."""

    def __init__(self, windows, share, lateness=0, emit="updates"):
        topology = de.Topology("updates")
        read = de.sources.Iterable(lambda: [], event_time="at")
        topology.source("rows", read).key_by("key").window(windows).compute(
            AGGREGATES, name="out", emit=emit, share=share, allowed_lateness=lateness * 1e-6
        )
        self.operator = topology.operator("out")
        assert self.operator.windowing.shares is bool(share)
        self.separate = False
        self.store = KeyedStore(GROUPS, lambda hashes: (hashes % GROUPS).astype(int), track_dirty=True)
        for shard in range(GROUPS):
            self.store.grant(shard, 1 + shard % 2)
        self.restart()
        self.reached = None
        self.began = False

    def restart(self):
        """Begin with new tasks that know nothing of the state."""
        self.logics = {
            task: WindowLogic(self.operator, self.store, self.store.session(task), GROUPS, True) for task in (1, 2)
        }

    def rows(self, rows):
        """Process rows in one batch of each task; returns the results."""
        columns = [pa.array([row[side] for row in rows], field.type) for side, field in enumerate(SCHEMA)]
        batch = pa.record_batch(columns, schema=SCHEMA)
        hashes = hash_columns(batch, ("key",))
        owners = self.store.owner.take((hashes % GROUPS).astype(int))
        self.began, found = True, []
        for task, logic in self.logics.items():
            chosen = np.flatnonzero(owners == task)
            if len(chosen):
                part = batch.take(pa.array(chosen))
                made = logic.process(part, hashes[chosen], reached=self.reached, separate=self.separate)
                found += [row for results in made for row in results.to_pylist()]
        return shown(found)

    def record(self, until):
        """Close instances in both tasks; returns the results."""
        metadata = {INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()} if self.began else {}
        found = []
        for task, logic in self.logics.items():
            shards = pa.array(np.flatnonzero(self.store.owner == task), pa.int32())
            rows = pa.record_batch({"shard": shards}).replace_schema_metadata(metadata)
            batch = SimpleNamespace(record=TimersDue(event=until), rows=rows, reached=self.reached, side=None)
            found += [row for results in logic.fire(batch, ErrorPolicy("fail", print)) for row in results.to_pylist()]
        self.reached = until
        return shown(found)

    def step(self, step, base):
        if isinstance(step, list):
            return self.rows([(f"key {key}", base + at - 15, value) for key, at, value in step])
        if isinstance(step, int):
            return self.rows([(f"key {key}", base + at, at) for key in range(5) for at in range(step)])
        if step[0] == "record":
            return self.record(base)
        if step[0] == "move":
            self.store.revoke(step[1])
            self.store.grant(step[1], step[2])
        elif step == "pack":
            self.store._pack()
        elif step == "change":
            self.separate = not self.separate
        else:
            self.restart()
        return []


def shown(results):
    return sorted((tuple(row.values()) for row in results), key=repr)


@pytest.mark.parametrize("lateness", [0, 5])
@pytest.mark.parametrize("windows", range(len(WINDOWS)))
@settings(max_examples=12)
@given(STEPS)
def test_updates_are_those_of_separate_instances(windows, lateness, steps):
    both = [Tasks(WINDOWS[windows], share, lateness) for share in (True, False)]
    base = 100
    for step in [*steps, ("record", 10**6)]:
        base += step[1] if isinstance(step, tuple) and step[0] == "record" else 0
        shared, separate = (tasks.step(step, base) for tasks in both)
        assert shared == separate


@pytest.mark.parametrize(("lateness", "emit"), [(0, "updates"), (5, "updates"), (5, "closed")])
@settings(max_examples=36)
@given(st.integers(0, len(WINDOWS) - 1), st.lists(st.one_of(STEP, st.just("change")), min_size=3, max_size=16))
def test_results_do_not_depend_on_changes_of_the_plan(lateness, emit, windows, steps):
    changing, fixed = (Tasks(WINDOWS[windows], share, lateness, emit) for share in ("auto", False))
    base = 100
    for step in [*steps, ("record", 10**6)]:
        base += step[1] if isinstance(step, tuple) and step[0] == "record" else 0
        found = changing.step(step, base)
        if step != "change":
            assert found == fixed.step(step, base)


@pytest.mark.parametrize("separate", [False, True])
def test_results_of_open_instances_are_merged_from_both_kinds_of_partials(separate):
    changing, fixed = Tasks(WINDOWS[0], "auto"), Tasks(WINDOWS[0], False)
    changing.separate = separate
    for step in (3, "change", 2, "restart", 4, "change", 5, ("record", 6), 2, ("move", 0, 2), 3):
        found = changing.step(step, 106)
        if step != "change":
            assert found == fixed.step(step, 106)
            assert found or not isinstance(step, int)


@pytest.mark.parametrize("separate", [False, True])
def test_shard_that_moves_brings_partials_of_the_other_kind(separate):
    tasks = Tasks(WINDOWS[0], "auto")
    keys = {}
    for number in range(50):
        batch = pa.record_batch([[f"key {number}"], [0], [0]], schema=SCHEMA)
        keys.setdefault(int(hash_columns(batch, ("key",))[0] % GROUPS), f"key {number}")
    # Shard 0 is of task 1, shard 1 of task 2.
    tasks.separate = separate
    tasks.rows([(keys[0], 10, 1)])
    tasks.separate = not separate
    tasks.rows([(keys[1], 10, 1)])
    tasks.store.revoke(0)
    tasks.store.grant(0, 2)
    assert {row[4] for row in tasks.rows([(keys[0], 10, 2)])} == {2}


@pytest.mark.parametrize("separate", [False, True])
def test_result_that_raises_after_a_change_leaves_partials_as_they_were(separate):
    changing, fixed = Tasks(WINDOWS[0], "auto"), Tasks(WINDOWS[0], False)
    changing.separate = not separate
    for tasks in (changing, fixed):
        tasks.rows([("a", 10, 1), ("b", 12, 2)])
        changing.separate = separate
        with pytest.raises(Exception, match="13 has no result"):
            tasks.rows([("a", 11, 5), ("b", 12, 13), ("c", 12, 7)])
    last = [("a", 11, 5), ("b", 12, 6), ("c", 12, 7)]
    assert changing.rows(last) == fixed.rows(last)
    assert changing.record(1000) == fixed.record(1000)


def test_slices_are_not_looked_up_when_no_open_instance_has_any(monkeypatch):
    tasks = Tasks(WINDOWS[0], "auto")
    tasks.rows([("a", 10, 1)])
    tasks.separate = True
    read = []
    real = updated_instances.UpdatedInstances._of_slices
    monkeypatch.setattr(
        updated_instances.UpdatedInstances, "_of_slices", lambda self, *args: read.append(1) or real(self, *args)
    )
    for at, lookups in ((10, 1), (13, 2), (14, 2), (15, 2)):
        # The slice ends at 11, where the earliest instance of a row at 14 begins.
        tasks.record(at)
        assert tasks.rows([("a", at, 2)])
        assert len(read) == lookups


def test_each_batch_has_one_result_of_each_open_instance_that_it_changes():
    tasks = Tasks(WINDOWS[0], True)
    found = tasks.rows([("a", 10, 1), ("a", 10, 2), ("b", 20, 3)])
    assert [(row[0], row[1].microsecond, row[3], row[4]) for row in found] == [
        *(("a", begin, None, 2) for begin in (10, 7, 8, 9)),
        *(("b", begin, None, 1) for begin in (17, 18, 19, 20)),
    ]
    tasks.record(12)
    found = tasks.rows([("a", 11, 5)])
    assert [(row[1].microsecond, row[4]) for row in found] == [(10, 3), (11, 1), (9, 3)]


def test_slices_are_read_in_parts(monkeypatch):
    monkeypatch.setattr(updated_instances, "MOST_LOOKUPS", 7)
    both = [Tasks(WINDOWS[1], share) for share in (True, False)]
    for step in (8, [(key, key * 3, key) for key in range(5)]):
        shared, separate = (tasks.step(step, 100) for tasks in both)
        assert shared == separate != []


def test_result_that_raises_leaves_slices_as_they_were():
    both = [Tasks(WINDOWS[0], share) for share in (True, False)]
    for tasks in both:
        tasks.rows([("a", 10, 1), ("b", 12, 2)])
        with pytest.raises(Exception, match="13 has no result"):
            tasks.rows([("a", 11, 5), ("b", 12, 13)])
    shared, separate = (tasks.rows([("a", 11, 5), ("b", 12, 6), ("c", 12, 7)]) for tasks in both)
    assert shared == separate
    shared, separate = (tasks.record(1000) for tasks in both)
    assert shared == separate


def test_result_that_raises_leaves_no_state_of_new_keys():
    tasks = Tasks(WINDOWS[0], True)
    tasks.rows([("a", 10, 1)])
    before = tasks.store.slots.counts(GROUPS)[1].tolist()
    for key in range(5):
        with pytest.raises(Exception, match="13 has no result"):
            tasks.rows([("a", 10, 2), (f"key {key}", 12, 13)])
    assert tasks.store.slots.counts(GROUPS)[1].tolist() == before
    assert tasks.rows([("key 0", 12, 1)])


@pytest.mark.parametrize("emit", ["closed", "updates"])
def test_slots_of_instances_are_freed_when_no_row_corrects_them(emit):
    tasks = Tasks([de.windows.sliding(0, "20us", "10us")], "auto", lateness=10, emit=emit)
    tasks.separate = True
    used = []
    for at in range(0, 800, 10):
        tasks.rows([(str(key), at, 1) for key in range(200)])
        tasks.record(at)
        # Clears the tombstones, as a checkpoint does.
        tasks.store.extract(dirty_only=True)
        used.append(tasks.store.slots.used)
    assert max(used) < 5_000 < 200 * 80

"""Instances of slices have the results of all their rows, wherever the slices are and however they are closed."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.moving.handed_over import PORTION_BYTES
from dask_elastic.executor.windows import known_cells
from dask_elastic.executor.windows.running_merges import Merged, RunningMerges
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state import KeyedStore
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.vocab.errors import UserCodeError
from dask_elastic.vocab.state_record import TimersDue

GROUPS = 8
SCHEMA = pa.schema({"key": pa.string(), "at": pa.timestamp("us"), "value": pa.int64()})
WINDOWS = [
    [de.windows.sliding(0, "4us", "1us")],
    [de.windows.sliding("1us", "6us", "2us"), de.windows.sliding(0, "3us", "3us")],
    [de.windows.sliding(0, "2us", "5us"), de.windows.sliding(0, "10us", "5us")],
]
ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        ROWS,
        st.integers(1, 12),
        st.tuples(st.just("record"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("separate"), ROWS),
        st.tuples(st.just("move"), st.integers(0, GROUPS - 1), st.integers(1, 2)),
        st.tuples(st.just("hand over"), st.integers(0, GROUPS - 1), st.integers(1, 2)),
        st.just("pack"),
    ),
    min_size=4,
    max_size=16,
)


class Tasks:
    """Two tasks with the windows of one compute, and what their results have to be."""

    def __init__(self, windows):
        topology = de.Topology("places")
        read = de.sources.Iterable(lambda: [], event_time="at")
        aggregates = {"rows": de.aggregate.Count(), "most": de.aggregate.TopK("value", 2)}
        topology.source("rows", read).key_by("key").window(windows).compute(aggregates, name="out")
        self.operator = topology.operator("out")
        self.windows = self.operator.windowing.windows
        self.store = KeyedStore(GROUPS, lambda hashes: (hashes % GROUPS).astype(int), track_dirty=True)
        for shard in range(GROUPS):
            self.store.grant(shard, 1 + shard % 2)
        self.logics = {
            task: WindowLogic(self.operator, self.store, self.store.session(task), GROUPS, True) for task in (1, 2)
        }
        self.policy = ErrorPolicy("fail", print)
        self.reached = None
        self.began = False
        self.wanted: dict[tuple[str, int, int], list[int]] = {}
        # Partials that owners of shards have handed over, and the next owners have not merged.
        self.handed: list[tuple[int, pa.RecordBatch]] = []

    def rows(self, rows, base, separate=False):
        """Process rows, at times from that of the last record on, or from somewhat before."""
        rows = [(f"the key {key}", base + at - 5, value) for key, at, value in rows]
        columns = [pa.array([row[side] for row in rows], field.type) for side, field in enumerate(SCHEMA)]
        batch = pa.record_batch(columns, schema=SCHEMA)
        hashes = hash_columns(batch, ("key",))
        owners = self.store.owner.take((hashes % GROUPS).astype(int))
        for task, logic in self.logics.items():
            chosen = np.flatnonzero(owners == task)
            if len(chosen):
                logic.process(batch.take(pa.array(chosen)), hashes[chosen], reached=self.reached, separate=separate)
        for key, at, value in rows:
            for window in self.windows:
                for number in range((at - window.start - window.length) // window.frequency + 1, 10**18):
                    begin = window.start + number * window.frequency
                    if begin > at:
                        break
                    if self.reached is None or begin + window.length > self.reached:
                        self.wanted.setdefault((key, begin, begin + window.length), []).append(value)
        self.began = True

    def hand_over(self, shard, task):
        """Let a task begin with a shard, without the state that this has so far."""
        self.merge()
        for state in self.store.portions_of(shard, PORTION_BYTES):
            described = {**state.schema.metadata, INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()}
            self.handed.append((shard, state.replace_schema_metadata(described)))
        self.store.revoke(shard)
        self.store.grant(shard, task)

    def merge(self):
        """Let the owners of shards merge what is handed over."""
        for shard, state in self.handed:
            self.logics[int(self.store.owner[shard])].merge(SimpleNamespace(rows=state), self.policy)
        self.handed.clear()

    def record(self, until, split=False):
        """Close instances in both tasks, and compare their results."""
        self.merge()
        metadata = {INPUT_SCHEMA: SCHEMA.serialize().to_pybytes()} if self.began else {}
        found = []
        for task, logic in self.logics.items():
            owned = np.flatnonzero(self.store.owner == task)
            for shards in (owned[::2], owned[1::2]) if split else (owned,):
                rows = pa.record_batch({"shard": pa.array(shards, pa.int32())}).replace_schema_metadata(metadata)
                batch = SimpleNamespace(record=TimersDue(event=until), rows=rows, reached=self.reached, side=None)
                for results in logic.fire(batch, self.policy):
                    found += results.to_pylist()
        made = [
            (row["key"], _us(row["window_start"]), _us(row["window_end"]), row["rows"], list(row["most"]))
            for row in found
        ]
        closed = {instance: self.wanted.pop(instance) for instance in [*self.wanted] if instance[2] <= until}
        assert sorted(made) == sorted(
            (*instance, len(values), sorted(values, reverse=True)[:2]) for instance, values in closed.items()
        )
        self.reached = until

    def run(self, steps):
        """Take steps, then close all."""
        base = 100
        for step in steps:
            if isinstance(step, list):
                self.rows(step, base)
            elif isinstance(step, int):
                # Dense rows: so many for each key and time.
                self.rows([(key, 5 + at, key) for key in range(7) for at in range(step)], base)
            elif step == "pack":
                self.store._pack()
            elif step[0] == "separate":
                self.rows(step[1], base, separate=True)
            elif step[0] == "move":
                self.store.revoke(step[1])
                self.store.grant(step[1], step[2])
            elif step[0] == "hand over":
                self.hand_over(step[1], step[2])
            else:
                base += step[1]
                self.record(base, step[2])
        self.record(10**6)
        assert self.wanted == {}
        assert len(self.store) == 0


def _us(time):
    return (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)


@settings(max_examples=15)
@given(steps=STEPS)
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_results_are_those_of_all_rows_in_time(windows, steps):
    Tasks(windows).run(steps)


def test_rows_of_slices_that_are_merged_already_count():
    tasks = Tasks(WINDOWS[0])
    tasks.run([6])
    base = 10**6
    for number in range(12):
        tasks.rows([(key, 5 + at, number) for key in range(7) for at in range(4)], base + number)
        tasks.record(base + number + 2)
        # On time for three of the instances that contain them.
        tasks.rows([(key, 6, 9) for key in range(7)], base + number)
    tasks.record(base + 100)


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_partials_of_instances_are_handed_over_beside_those_of_slices(windows):
    tasks = Tasks(windows)
    rows = [(key, 5 + at, key + at) for key in range(7) for at in range(6)]
    tasks.rows(rows, 100)
    tasks.rows(rows, 100, separate=True)
    for shard in range(GROUPS):
        tasks.hand_over(shard, 2 - shard % 2)
    # The next owner has partials of the same slices and instances.
    tasks.rows(rows, 101)
    tasks.rows(rows, 101, separate=True)
    tasks.record(104)
    tasks.record(10**6)
    assert tasks.wanted == {}
    assert len(tasks.store) == 0


def test_times_of_a_batch_may_be_far_from_each_other():
    tasks = Tasks(WINDOWS[0])
    tasks.rows([(key, 5 + at, 1) for key in range(7) for at in (0, 8, 10**6, 10**6 + 8, 10**14)], 100)
    tasks.record(104)
    tasks.rows([(key, 5 + at, 1) for key in range(7) for at in (0, 10**14)], 104)
    tasks.record(10**15)
    assert tasks.wanted == {}


def test_slots_of_slices_are_used_again():
    tasks = Tasks(WINDOWS[0])
    used = []
    for base in range(100, 160):
        tasks.rows([(key, 5, key) for key in range(7)], base)
        tasks.record(base)
        used.append(tasks.store.slots.used)
    places = tasks.logics[1].cells.places
    assert used[-1] == used[places] <= 7 * places
    assert tasks.store.layout == 0


def test_instances_close_without_a_search_of_the_slots(monkeypatch):
    tasks = Tasks(WINDOWS[0])
    tasks.run([3, ("record", 1, False)])
    searches = []
    for logic in tasks.logics.values():
        read = logic._session.read
        monkeypatch.setattr(logic._session, "read", lambda *given, read=read: searches.append(1) or read(*given))
    for base in range(10**6, 10**6 + 30):
        tasks.rows([(key, 5, key) for key in range(7)], base)
        tasks.record(base)
    # Once for each task: the tables are complete from then on.
    assert len(searches) <= 2


def test_slots_of_keys_without_rows_are_freed():
    tasks = Tasks(WINDOWS[0])
    made = 0
    for base in range(100, 300, 4):
        batch = [(f"{base} {number}", 5 + at, 1) for number in range(40) for at in range(4)]
        made += len(batch)
        tasks.rows(batch, base)
        tasks.record(base)
        # Clears the tombstones, as a flush to another copy does.
        tasks.store.extract(dirty_only=True)
    assert tasks.store.slots.used <= 4_096 + 8 * 160 < made


def test_slots_of_slices_far_ahead_are_freed():
    tasks = Tasks(WINDOWS[0])
    for base in range(100, 600, 4):
        # More slices wait at a time than there are places.
        tasks.rows([(key, 85 + at, 1) for key in range(40) for at in range(4)], base)
        tasks.record(base)
        tasks.store.extract(dirty_only=True)
    assert len(tasks.store) <= 40 * 90
    assert tasks.store.slots.used <= 2 * 40 * 90 + 8 * 160


def test_tables_of_many_keys_and_places_are_bounded(monkeypatch):
    monkeypatch.setattr(known_cells, "MOST_ENTRIES", 20 * 1024)
    tasks = Tasks(WINDOWS[0])
    for base in range(100, 200, 4):
        for at in range(0, 60, 5):
            tasks.rows([(key, 5 + at, 1) for key in range(40)], base)
        tasks.record(base)
        assert all(len(logic._known._tables) <= 20 for logic in tasks.logics.values())
    tasks.record(10**6)
    assert tasks.wanted == {}


def test_merge_that_raises_fails_with_the_name_of_the_operator():
    tasks = Tasks(WINDOWS[0])
    tasks.rows([(0, 5, 1), (0, 6, 1)], 100)
    tasks.record(101)

    def merge(left, right):
        raise ValueError("no merge")

    for logic in tasks.logics.values():
        if logic._bound is not None:
            logic._bound.bundle.merge = merge
    with pytest.raises(UserCodeError, match=r"'out'.*no merge"):
        tasks.record(104)


@given(
    present=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=12, max_size=12),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=8),
)
def test_running_merges_are_those_of_all_slices(present, steps):
    bundle = Bundle({"rows": de.aggregate.Count()}, pa.schema({}))
    slices = [Merged([np.arange(3) + 10**number], np.array(there)) for number, there in enumerate(present)]
    running = RunningMerges(bundle, slices.__getitem__)
    begin = end = 0
    for forward, length in steps:
        begin, end = begin + forward, max(end, begin + forward + length)
        if end > len(slices):
            return
        found = running.of(begin, end)
        for key in range(3):
            values = [int(one.values[0][key]) for one in slices[begin:end] if one.present[key]]
            assert found.present[key] == bool(values)
            assert not values or found.values[0][key] == sum(values)

"""The state of key groups that is copied before they leave: their next executors get what the present one has."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.drivers.group_driver import GroupDriver
from dask_elastic.executor.drivers.steps import run
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.incoming_groups import IncomingGroups
from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.slots import LIVE, TOMBSTONE
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId

GROUPS, KEYS = 4, 12
SCHEMA, FIELDS = pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64), 0)]
LOSES = {0: 1, 1: 2, 3: 1}
"""Group 2 stays."""


class Moving:
    """A store with the groups of executor 0, three of which are copied to two other executors while it changes."""

    def __init__(self):
        self.stores = [PrimaryState(GROUPS, lambda hashes: (hashes % np.uint64(GROUPS)).astype(np.intp)) for _ in "abc"]
        self.here = self.stores[0]
        for store in self.stores:
            store.track_dirty = True
        self.here.declare(SCHEMA, FIELDS)
        for group in range(GROUPS):
            self.here.grant(group, 1)
        self.coming = [IncomingGroups(7, ExecutorId("op", index), store) for index, store in enumerate(self.stores)]
        self.copy = self._round = None

    def write(self, key):
        """Add one to the count of a key."""
        session = self.here.session(1)
        located = session.locate(pa.record_batch({"k": [key]}), ["k"], np.array([key], np.uint64))
        session.apply(located, lambda current: [current[0] + 1])

    def delete(self, key):
        """Delete the state of a key."""
        _, slots = self.here.find(np.array([key], np.uint64), np.zeros(1, np.uint64))
        with self.here.still():
            live = slots[(slots >= 0) & ((self.here.slots.marks[slots] & LIVE) != 0)]
            self.here.slots.reset(live, TOMBSTONE)

    def portion(self, key):
        """Copy the next rows; at first, begin."""
        if self.copy is None:
            self.copy = OutgoingGroups(7, LOSES, ExecutorId("op", 0), self.here, at_once=2, small=0)
            self._round = self.copy.round()
        found = next(self._round, None)
        if found is None:
            self._round = self.copy.round()
        else:
            self.coming[found[0]].install(found[1])

    def finish(self):
        """Copy what is left."""
        self.portion(0)
        for target in sorted({*LOSES.values()}):
            for portion in self.copy.rest(target):
                self.coming[target].install(portion)
            self.coming[target].complete(0, self.copy.nothing(target).position, ())


def state(store, groups):
    """The count of each key of some groups."""
    if store.key_schema is None:
        return {}
    keys, (counts,) = store.rows(groups)
    return dict(zip(keys["k"].to_pylist(), counts.tolist(), strict=True))


steps = st.lists(st.tuples(st.sampled_from(("write", "delete", "portion")), st.integers(0, KEYS - 1)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_each_next_executor_has_the_state_of_its_groups_and_of_no_other(done):
    moving = Moving()
    for name, key in done:
        getattr(moving, name)(key)
    moving.finish()
    for target in (1, 2):
        own = [group for group, to in LOSES.items() if to == target]
        assert state(moving.stores[target], None) == state(moving.here, own)


def test_removal_in_pieces_leaves_tombstones_of_the_groups_alone(monkeypatch):
    monkeypatch.setattr("dask_elastic.state.store._REMOVED_AT_ONCE", 2)
    moving = Moving()
    for key in range(KEYS):
        moving.write(key)
    moving.here.remove([0, 3])
    assert state(moving.here, None) == {key: 1 for key in range(KEYS) if key % GROUPS in (1, 2)}
    marks = moving.here.slots.marks[: moving.here.slots.used]
    assert np.count_nonzero(marks == TOMBSTONE) == KEYS / 2


def a_portion(position, source=0):
    """The count of one key of group 0."""
    moving = Moving()
    moving.write(4 * position)
    copy = OutgoingGroups(7, {0: 1}, ExecutorId("op", source), moving.here)
    [(_, portion)] = copy.round()
    return CopiedGroups(7, source, (0,), position, portion.rows)


def test_portions_of_each_executor_are_installed_once_and_in_order():
    coming = Moving().coming[1]
    coming.install(a_portion(0))
    coming.install(a_portion(0, source=2))
    for wrong in (a_portion(0), a_portion(2)):
        with pytest.raises(ProtocolError, match=f"portion {wrong.position} of groups from executor 0 does not follow"):
            coming.install(wrong)
    coming.install(a_portion(1))
    with pytest.raises(ProtocolError, match="portion 3 of groups from executor 0 does not follow portion 2"):
        coming.complete(0, 3, ())
    coming.complete(0, 2, a_portion(2).rows)
    assert state(coming._store, None) == {0: 1, 4: 1, 8: 1}


def test_cancelled_copy_leaves_nothing_and_refuses_what_comes_late():
    coming = IncomingGroups(7, ExecutorId("op", 1), Moving().stores[1], threading.Lock)
    coming.install(a_portion(0))
    coming.drop()
    assert state(coming._store, None) == {}
    with pytest.raises(MoveRefused, match="groups to version 7 was cancelled"):
        coming.install(a_portion(1))
    assert state(coming._store, None) == {}


def test_round_without_changes_is_the_last_one():
    moving = Moving()
    for key in range(KEYS):
        moving.write(key)
    copy, rounds = OutgoingGroups(7, LOSES, ExecutorId("op", 0), moving.here, at_once=2, small=0), []
    while copy.goes_on:
        rounds.append([portion.position for target, portion in copy.round() if target == 1])
    assert rounds == [[0, 1, 2], []]
    copy.end()
    moving.write(0)
    assert [*copy.rest(1)] == []


def test_rest_is_one_portion_though_tasks_waited_long_for_each_piece(monkeypatch):
    monkeypatch.setattr("dask_elastic.state.outgoing_rows._WINDOW", 4)
    moving, ticks = Moving(), itertools.count()
    for key in range(KEYS):
        moving.write(key)
    copy = OutgoingGroups(7, {0: 1}, ExecutorId("op", 0), moving.here, clock=lambda: float(next(ticks)))
    while copy.goes_on:
        assert all(target == 1 for target, _ in copy.round())
    for key in range(KEYS):
        moving.write(key)
    [rest] = copy.rest(1)
    assert sum(part.rows.num_rows for part in rest.rows) == KEYS / GROUPS


class Host:
    """Begins copies of the state of an executor."""

    def __init__(self, executor):
        self.executor = executor

    def lock(self):
        """Return a lock."""
        return threading.Lock()

    def bell(self):
        """Return what wakes nothing."""

    def now(self):
        """Return a time in seconds."""
        return 0.0

    def copy_of_groups(self, version, loses):
        """Begin a copy."""
        return OutgoingGroups(version, loses, self.executor.identity, self.executor.store)


def test_copy_that_begins_after_its_move_was_cancelled_is_refused_and_ends_no_other():
    source = ExecutorId("rows", 0)
    executor = GroupExecutor(ExecutorId("op", 0), KeySpace(1, GROUPS), 0, {0: 1}, [source], groups=[0, 1])
    driver = GroupDriver(executor, Host(executor), threading.Lock)
    run(driver.forget_groups(1))
    run(driver.copy_groups(2, {0: 1}))
    newer = executor.store.outgoing
    with pytest.raises(MoveRefused, match=r"the move of groups of op\[0\] to version 1 is over"):
        run(driver.copy_groups(1, {0: 1}))
    assert executor.store.outgoing is newer is not None

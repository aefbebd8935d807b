from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.guard import Guard, ProposedChange
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId


def key(index, job="job"):
    return job, 1, ExecutorId("op", index)


def change(index, before, after, moved=0.0, urgent=False):
    return ProposedChange(key(index), columns(before), columns(after), moved, urgent)


def columns(counts):
    return {node: int(count) for node, count in enumerate(counts) if count}


def indices(admission):
    return [change.key[2].index for change in admission.admitted]


def test_guard_admits_fitting_change():
    admission = Guard(ControlSettings()).vet(0.0, [change(0, [1, 0], [1, 1])], np.array([0, 1]))
    assert indices(admission) == [0]
    assert not admission.deferred


def test_guard_defers_second_change_until_cooldown_has_passed():
    guard = Guard(ControlSettings(cooldown=5.0))
    free = np.array([9])
    guard.vet(0.0, [change(0, [1], [2])], free)
    early = guard.vet(3.0, [change(0, [2], [1]), change(1, [1], [2])], free)
    assert indices(early) == [1]
    assert early.deferred[key(0)] == "its cores changed 3.0 s ago and the cooldown is 5 s"
    assert indices(guard.vet(5.0, [change(0, [2], [1])], free)) == [0]


def test_guard_admits_urgent_change_during_cooldown():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [change(0, [1], [2])], np.array([9]))
    assert indices(guard.vet(1.0, [change(0, [2], [4], urgent=True)], np.array([9]))) == [0]


def test_guard_admits_release_of_core_that_urgent_change_takes():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [change(0, [1, 1], [2, 1]), change(1, [1, 1], [2, 1])], np.array([9, 9]))
    changes = [change(0, [2, 1], [1, 1]), change(1, [2, 1], [2, 0]), change(2, [1, 0], [2, 0], urgent=True)]
    admission = guard.vet(1.0, changes, np.array([0, 0]))
    assert indices(admission) == [0, 2], "the release comes first"
    assert list(admission.deferred) == [key(1)]


def test_guard_defers_change_whose_core_is_not_released():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [change(0, [1], [2])], np.array([1]))
    admission = guard.vet(1.0, [change(0, [2], [1]), change(1, [1], [2])], np.array([0]))
    assert indices(admission) == []
    assert admission.deferred[key(1)] == "it needs cores that other executors do not release yet"


def test_guard_spends_budget_on_urgent_then_on_smallest_changes():
    mebi = 2**20
    guard = Guard(ControlSettings(budget_bytes=10 * mebi))
    changes = [
        change(0, [1, 0], [0, 1], 4 * mebi),
        change(1, [1, 0], [0, 1], 3 * mebi),
        change(2, [1, 0], [0, 1], 6 * mebi, urgent=True),
    ]
    admission = guard.vet(0.0, changes, np.array([0, 9]))
    assert set(indices(admission)) == {1, 2}
    assert (
        admission.deferred[key(0)]
        == "it moves 4.0 MiB of state, and 9.0 MiB of this period's budget of 10.0 MiB are used"
    )


def test_guard_admits_change_above_budget_alone():
    guard = Guard(ControlSettings(budget_bytes=10.0))
    changes = [change(0, [1, 0], [0, 1], 50.0), change(1, [1, 0], [0, 1], 60.0), change(2, [1, 0], [1, 1], 0.0)]
    admission = guard.vet(0.0, changes, np.array([0, 9]))
    assert set(indices(admission)) == {0, 2}


def test_guard_starts_no_cooldown_for_deferred_change():
    guard = Guard(ControlSettings(cooldown=5.0, budget_bytes=1.0))
    changes = [change(0, [1, 0], [0, 1], 5.0), change(1, [1, 0], [0, 1], 6.0)]
    assert indices(guard.vet(0.0, changes, np.array([0, 9]))) == [0]
    assert indices(guard.vet(1.0, changes[1:], np.array([0, 9]))) == [1]


def test_guard_admits_change_that_relieves_overfull_node():
    admission = Guard(ControlSettings()).vet(0.0, [change(0, [2, 0], [0, 2])], np.array([-2, 2]))
    assert indices(admission) == [0]


def test_guard_admits_swap_between_full_nodes():
    changes = [change(0, [1, 0], [0, 1]), change(1, [0, 1], [1, 0])]
    assert len(Guard(ControlSettings()).vet(0.0, changes, np.array([0, 0])).admitted) == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_guard_admitted_changes_always_fit(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(1, 5)), int(random.integers(1, 7))
    before = random.integers(0, 3, (nodes, executors))
    after = random.integers(0, 3, (nodes, executors))
    capacity = np.maximum(after.sum(axis=1), random.integers(0, 9, nodes))
    free = capacity - before.sum(axis=1)
    changes = [
        change(i, before[:, i], after[:, i], float(random.integers(0, 9)), bool(random.random() < 0.4))
        for i in range(executors)
        if (before[:, i] != after[:, i]).any()
    ]
    guard = Guard(ControlSettings(budget_bytes=12.0, cooldown=3.0))
    guard._changed = {one.key: -1.0 for one in changes if random.random() < 0.5}
    admission = guard.vet(0.0, changes, free)
    total = np.zeros(nodes, dtype=int)
    for one in admission.admitted:
        for node, cores in one.taken.items():
            total[node] += cores
    assert ((total <= np.maximum(free, 0)) | (total <= 0)).all()
    moved = [one.moved_bytes for one in admission.admitted if one.moved_bytes]
    assert sum(moved) <= 12.0 or len(moved) == 1
    assert {one.key for one in admission.admitted} | set(admission.deferred) == {one.key for one in changes}
    assert not {one.key for one in admission.admitted} & set(admission.deferred)
    assert [one.key for one in guard.vet(0.0, [], free).admitted] == []

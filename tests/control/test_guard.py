from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.guard import Guard, Step
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId


def owner(index, job="job"):
    return job, 1, ExecutorId("op", index)


def step(index, before, after, moved=0.0, urgent=False):
    return Step(owner(index), np.array(before), np.array(after), moved, urgent)


def indices(verdict):
    return [step.owner[2].index for step in verdict.admitted]


def test_what_fits_is_admitted():
    verdict = Guard(ControlSettings()).vet(0.0, [step(0, [1, 0], [1, 1])], np.array([0, 1]))
    assert indices(verdict) == [0]
    assert not verdict.held


def test_a_second_change_waits_for_the_cooldown():
    guard = Guard(ControlSettings(cooldown=5.0))
    free = np.array([9])
    guard.vet(0.0, [step(0, [1], [2])], free)
    early = guard.vet(3.0, [step(0, [2], [1]), step(1, [1], [2])], free)
    assert indices(early) == [1]
    assert early.held[owner(0)] == "its cores have changed 3.0 s ago, the cooldown is 5 s"
    assert indices(guard.vet(5.0, [step(0, [2], [1])], free)) == [0]


def test_what_is_urgent_does_not_wait():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [step(0, [1], [2])], np.array([9]))
    assert indices(guard.vet(1.0, [step(0, [2], [4], urgent=True)], np.array([9]))) == [0]


def test_whose_core_an_urgent_one_takes_does_not_wait_either():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [step(0, [1, 1], [2, 1]), step(1, [1, 1], [2, 1])], np.array([9, 9]))
    steps = [step(0, [2, 1], [1, 1]), step(1, [2, 1], [2, 0]), step(2, [1, 0], [2, 0], urgent=True)]
    verdict = guard.vet(1.0, steps, np.array([0, 0]))
    assert indices(verdict) == [0, 2], "the giver comes first"
    assert list(verdict.held) == [owner(1)]


def test_one_who_would_find_no_core_waits_with_the_giver():
    guard = Guard(ControlSettings(cooldown=5.0))
    guard.vet(0.0, [step(0, [1], [2])], np.array([1]))
    verdict = guard.vet(1.0, [step(0, [2], [1]), step(1, [1], [2])], np.array([0]))
    assert indices(verdict) == []
    assert verdict.held[owner(1)] == "it takes cores that others do not give up yet"


def test_the_budget_goes_to_the_urgent_then_to_those_that_move_least():
    mebi = 2**20
    guard = Guard(ControlSettings(budget_bytes=10 * mebi))
    steps = [
        step(0, [1, 0], [0, 1], 4 * mebi),
        step(1, [1, 0], [0, 1], 3 * mebi),
        step(2, [1, 0], [0, 1], 6 * mebi, urgent=True),
    ]
    verdict = guard.vet(0.0, steps, np.array([0, 9]))
    assert set(indices(verdict)) == {1, 2}
    assert verdict.held[owner(0)] == "it moves 4.0 MiB, and 9.0 MiB of the 10.0 MiB for one period are used"


def test_what_fits_no_budget_goes_alone():
    guard = Guard(ControlSettings(budget_bytes=10.0))
    steps = [step(0, [1, 0], [0, 1], 50.0), step(1, [1, 0], [0, 1], 60.0), step(2, [1, 0], [1, 1], 0.0)]
    verdict = guard.vet(0.0, steps, np.array([0, 9]))
    assert set(indices(verdict)) == {0, 2}


def test_a_held_change_is_not_remembered_as_a_change():
    guard = Guard(ControlSettings(cooldown=5.0, budget_bytes=1.0))
    steps = [step(0, [1, 0], [0, 1], 5.0), step(1, [1, 0], [0, 1], 6.0)]
    assert indices(guard.vet(0.0, steps, np.array([0, 9]))) == [0]
    assert indices(guard.vet(1.0, steps[1:], np.array([0, 9]))) == [1]


def test_nodes_that_are_overfull_may_be_emptied():
    verdict = Guard(ControlSettings()).vet(0.0, [step(0, [2, 0], [0, 2])], np.array([-2, 2]))
    assert indices(verdict) == [0]


def test_a_swap_of_full_nodes_is_carried_out_although_nobody_can_be_first():
    steps = [step(0, [1, 0], [0, 1]), step(1, [0, 1], [1, 0])]
    assert len(Guard(ControlSettings()).vet(0.0, steps, np.array([0, 0])).admitted) == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_whatever_is_held_back_the_rest_fits(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(1, 5)), int(random.integers(1, 7))
    before = random.integers(0, 3, (nodes, executors))
    after = random.integers(0, 3, (nodes, executors))
    capacity = np.maximum(after.sum(axis=1), random.integers(0, 9, nodes))
    free = capacity - before.sum(axis=1)
    steps = [
        step(i, before[:, i], after[:, i], float(random.integers(0, 9)), bool(random.random() < 0.4))
        for i in range(executors)
        if (before[:, i] != after[:, i]).any()
    ]
    guard = Guard(ControlSettings(budget_bytes=12.0, cooldown=3.0))
    guard._changed = {one.owner: -1.0 for one in steps if random.random() < 0.5}
    verdict = guard.vet(0.0, steps, free)
    change = sum((one.after - one.before for one in verdict.admitted), np.zeros(nodes, dtype=int))
    assert ((change <= np.maximum(free, 0)) | (change <= 0)).all()
    moved = [one.moved_bytes for one in verdict.admitted if one.moved_bytes]
    assert sum(moved) <= 12.0 or len(moved) == 1
    assert {one.owner for one in verdict.admitted} | set(verdict.held) == {one.owner for one in steps}
    assert not {one.owner for one in verdict.admitted} & set(verdict.held)
    assert [one.owner for one in guard.vet(0.0, [], free).admitted] == []

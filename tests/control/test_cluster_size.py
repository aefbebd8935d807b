"""The number of workers that jobs need, from measurements and over time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.cluster.cluster_size import ROOM, ClusterSize
from dask_elastic.control.cluster.slots_needed import FULLEST, NeededSlots
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

PERIOD, COOLDOWN = 1.0, 10.0


def snapshot_of(*executors):
    return Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 8),), (JobSnapshot("job", 1, executors),))


def executor(index, cores, load, service_rate=100.0):
    name = ExecutorId("count", index)
    return ExecutorSnapshot(name, 0, {0: cores}, arrival_rate=load * 100.0, service_rate=service_rate)


def test_slots_count_cores_after_the_plan_and_those_that_are_lacking():
    snapshot = snapshot_of(executor(0, 2, 1.5), executor(1, 4, 0.1))
    change = CoreChange("job", 1, ExecutorId("count", 1), {0: 4}, {0: 1})
    plan = Plan((change,), (), {"job": Outlook(starved=3)})
    assert NeededSlots().after(snapshot, plan) == pytest.approx(2 + 0.1 / FULLEST + 3)
    of_another = CoreChange("job", 2, ExecutorId("count", 1), {0: 4}, {0: 1})
    assert NeededSlots().after(snapshot, Plan((of_another,), (), {})) == pytest.approx(2 + 4)


def test_job_that_restarts_needs_what_it_needed_before():
    needed, idle, none = NeededSlots(), snapshot_of(executor(0, 1, 0.0, None)), Plan((), (), {})
    assert needed.after(idle, none, {"job"}) == 0.0, "it has not been measured yet"
    before = needed.after(snapshot_of(executor(0, 1, 0.35)), none)
    assert before == pytest.approx(0.35 / FULLEST)
    assert [needed.after(idle, none, {"job"}) for _ in range(3)] == [before] * 3
    assert needed.after(snapshot_of(executor(0, 3, 0.0, None)), none, {"job"}) == 3.0
    assert needed.after(idle, none, {"another"}) == 0.0
    assert needed.after(idle, none, {"job"}) == 0.0


@pytest.mark.parametrize(
    ("load", "service_rate", "slots"), [(0.0, None, 0.0), (0.2, None, 1.0), (0.0, 9.0, 0.0), (3.0, 100.0, 1.0)]
)
def test_executor_of_one_core_needs_its_part_of_a_slot(load, service_rate, slots):
    assert NeededSlots().after(snapshot_of(executor(0, 1, load, service_rate)), Plan((), (), {})) == slots


loads = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60)


@given(loads, st.integers(1, 4), st.integers(0, 6))
def test_cluster_always_has_the_slots_that_are_needed_and_shrinks_only_to_what_was_enough(loads, per_worker, present):
    size, seen = ClusterSize(COOLDOWN), []
    for period, slots in enumerate(loads):
        now = period * PERIOD
        wanted = size.workers(now, slots, per_worker, present)
        assert wanted * per_worker >= slots - 1e-3
        seen.append((now, math.ceil(slots * (1 + ROOM) / per_worker - 1e-6)))
        if wanted < present:
            assert now >= COOLDOWN, "the need has been known for long enough"
            recent = [needed for at, needed in seen if at >= now - COOLDOWN]
            assert wanted == max(recent)
        present = wanted


def test_load_at_the_border_of_two_sizes_changes_the_size_once():
    size, present, sizes = ClusterSize(COOLDOWN), 2, set()
    for period in range(200):
        present = size.workers(period * PERIOD, 4.0 + 0.2 * (period % 2), 2, present)
        sizes.add(present)
    assert sizes == {2, 3}
    assert present == 3


@pytest.mark.parametrize("cooldown", [-1.0, math.inf, math.nan])
def test_impossible_cooldown_is_refused(cooldown):
    with pytest.raises(PlanningError, match="cooldown"):
        ClusterSize(cooldown)

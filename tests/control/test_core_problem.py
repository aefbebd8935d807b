"""What it costs to move executors, as the core planners see it."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.control.grants import Grant, core_problem
from dask_elastic.planning.registry import planner
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))


def executor(index, cores, state_bytes, busy, shards=64):
    """Return an executor whose home is the second node."""
    return ExecutorSnapshot(
        ExecutorId("count", index), 1, cores, arrival_rate=100 * busy, service_rate=100.0, throughput=100 * busy,
        state_bytes=state_bytes, shard_load=np.zeros(shards) if shards else None,
    )  # fmt: skip


def problem(*granted):
    """Return the problem of granting cores to executors, given as pairs."""
    executors = [executor for executor, _ in granted]
    job = JobSnapshot("job", 1, tuple(executors))
    grants = [Grant(job, executor, cores, cores, 0, True) for executor, cores in granted]
    return core_problem(grants, NODES, np.array([4, 4]), 512 * 1024)


def planned(*granted):
    return planner("elasticutor", "cores").plan(problem(*granted)).columns.columns


def test_busy_executor_with_little_state_keeps_its_tasks_at_home():
    # With bytes of state alone, the last one would move to the first node as a whole: 6 kB are less than 48.
    columns = planned(
        (executor(0, {1: 1}, 190_000, busy=0.6), 4),
        (executor(1, {0: 1, 1: 1}, 6_000, busy=0.2), 2),
        (executor(2, {1: 2}, 6_000, busy=1.2), 2),
    )
    assert columns[2] == {1: 2}


def test_idle_executor_makes_room_rather_than_a_busy_one():
    made = problem((executor(0, {1: 2}, 6_000, busy=1.2), 2), (executor(1, {1: 2}, 6_000, busy=0.1), 2))
    assert made.state_bytes[0] > made.state_bytes[1]


def test_much_state_outweighs_the_handling_of_shards():
    made = problem((executor(0, {1: 2}, 1e9, busy=0.0), 2), (executor(1, {1: 2}, 1e6, busy=2.0), 2))
    assert made.state_bytes[0] > 10 * made.state_bytes[1]


@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_executor_without_measured_shards_costs_its_state(busy):
    assert problem((executor(0, {1: 1}, 5_000, busy, shards=0), 1)).state_bytes == [5_000]

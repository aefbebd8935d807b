"""What it costs to move executors, as the core planners see it."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.control.grants import AWAY, Grants, core_problem
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
    cores = np.array([cores for _, cores in granted])
    grants = Grants(job, np.arange(len(cores)), cores, cores, np.zeros_like(cores), True)
    return core_problem([grants], NODES, np.array([4, 4]), 512 * 1024)


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


def test_problem_of_several_jobs_has_only_executors_that_may_change_in_order():
    first, second = (
        JobSnapshot(name, 1, tuple(executor(index, {node: 1}, size, 0.5, shards=0) for index, size in enumerate(sizes)))
        for name, node, sizes in (("a", 0, (1, 2, 3)), ("b", 1, (4,)))
    )
    granted = np.array([2, 1])
    grants = [
        Grants(first, np.array([0, 2]), granted, granted, np.zeros_like(granted), False),
        Grants(second, np.array([0]), granted[:1], granted[:1], np.zeros_like(granted[:1]), False),
    ]
    made = core_problem(grants, NODES, np.array([4, 4]), 512 * 1024)
    assert made.columns.columns == [{0: 1}, {0: 1}, {1: 1}]
    assert made.state_bytes.tolist() == [1.0, 3.0, 4.0]
    assert made.granted.tolist() == [2, 1, 2]


def test_data_intensity_is_less_away_from_home_and_none_where_the_home_retires():
    executors = tuple(
        ExecutorSnapshot(ExecutorId("count", index), home, cores, 1.0, 1.0, bytes_in=30.0, bytes_out=10.0)
        for index, (home, cores) in enumerate([(0, {0: 2}), (0, {1: 2}), (0, {1: 1, 0: 1}), (2, {2: 2}), (0, {})])
    )
    nodes = (*NODES, NodeSnapshot("tcp://c:1", "c", 4, retiring=True))
    cores = np.ones(len(executors), dtype=np.int64)
    grants = Grants(JobSnapshot("job", 1, executors), np.arange(len(cores)), cores, cores, 0 * cores, True)
    made = core_problem([grants], nodes, np.array([4, 4, 4]), 512 * 1024)
    assert made.intensity.tolist() == [20.0, 20.0 * AWAY, 20.0 * AWAY, 0.0, 0.0]
    assert made.columns.columns[2] == {0: 1, 1: 1}
    assert list(made.columns.columns[2]) == [0, 1]

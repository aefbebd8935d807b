"""Decisions about large clusters: time and memory grow with the executors, not with executors times nodes."""

from __future__ import annotations

import cProfile
import pstats
import tracemalloc

import numpy as np

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.spreading import spread
from dask_elastic.planning.cores.columns import CoreColumns
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


def cluster(nodes, seed=0):
    """Return a snapshot with three executors per node, of which many need other cores than they have."""
    random = np.random.default_rng(seed)
    executors = tuple(
        ExecutorSnapshot(
            ExecutorId("op", number), number % nodes, {number % nodes: int(random.integers(1, 4))},
            float(random.uniform(100, 4000)), 1000.0, 100.0, state_bytes=int(random.integers(1, 10**6)),
            bytes_in=float(random.choice([1e3, 3e6])), shard_load=random.random(8),
        )
        for number in range(3 * nodes)
    )  # fmt: skip
    places = tuple(NodeSnapshot(f"n{index}", f"h{index // 2}", 9) for index in range(nodes))
    return Snapshot(0.0, places, (JobSnapshot("job", 1, executors, latency_target=0.05),))


def peak_bytes(nodes):
    """Return the most memory that a decision takes beside its snapshot."""
    snapshot, loop = cluster(nodes), ControlLoop()
    tracemalloc.start()
    try:
        plan = loop.tick(snapshot)
        return tracemalloc.get_traced_memory()[1], len(plan.changes)
    finally:
        tracemalloc.stop()


def calls(decide):
    """Return the number of function calls, which unlike time does not depend on the machine."""
    profile = cProfile.Profile()
    profile.runcall(decide)
    return pstats.Stats(profile).total_calls


def test_decision_takes_few_calls_per_executor():
    # The first decision of a process imports what later ones use.
    ControlLoop().tick(cluster(20))
    snapshot, loop = cluster(400), ControlLoop()
    # With 198 calls, a thousand nodes took 95 to 140 ms of CPU.
    assert calls(lambda: loop.tick(snapshot)) < 175 * 1_200


def test_spreading_of_gil_bound_executors_takes_linear_time():
    def work(nodes):
        current = CoreColumns(nodes, [{node: 1} for node in range(nodes)])
        granted, home = np.full(nodes, 3), np.arange(nodes)
        one, hosts = np.ones(nodes, dtype=int), [f"h{node // 2}" for node in range(nodes)]
        return calls(lambda: spread(current, granted, granted, one, 4 * one, home, hosts, 0 * one))

    assert work(200) < 5 * work(50)


def test_memory_of_decision_grows_with_executors_only():
    # The first decision of a process allocates what later ones use again.
    peak_bytes(20)
    (small, few), (large, many) = peak_bytes(150), peak_bytes(600)
    assert many > 3 * few > 300, "most executors change"
    # Four times the cluster takes four times the memory, and an array of nodes times executors 16 times.
    assert large < 5.5 * small

from __future__ import annotations

import math
import time
import tracemalloc
from dataclasses import replace

import pytest

from dask_elastic.control.history import SERIES, History
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import PlanningError, UnknownJob
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))


def executor(index, cores, entry=True):
    return ExecutorSnapshot(
        ExecutorId("op", index), 0, cores, 100.0, 50.0, throughput=90.0, queue=3, state_bytes=7, entry=entry, moves=2
    )


def job(name="job", generation=1, cores=None, **more):
    executors = (executor(0, cores or {0: 2, 1: 1}), executor(1, {1: 1}, entry=False))
    return JobSnapshot(name, generation, executors, **more)


def decision(number=1, name="job", generation=1):
    return Decision(number, 0.0, name, generation, None, None, None, True, {}, (), False, "because")


def add(history, now, *jobs, plan=None, nodes=NODES):
    history.add(Snapshot(now, nodes, jobs), plan or Plan())
    return history


def test_history_series_contain_measurements():
    plan = Plan((), (decision(),), {"job": Outlook(0.04, True, 3, ("op",))})
    measured = job(latency_target=0.05, latency=0.03, latency_p99=0.2, source_rate=80.0, source_lag=0.7)
    history = add(History(), 5.0, measured, plan=plan).job("job")
    known = {name: history.series(name) for name in SERIES}
    assert known == {
        "throughput": [80.0], "lag": [0.7], "latency": [0.03], "latency_p99": [0.2], "predicted": [0.04],
        "target": [0.05], "queue": [6.0], "cores": [4.0], "state_bytes": [14.0], "moves": [4.0],
    }  # fmt: skip
    assert history.times == [5.0]
    assert history.bound == ("op",)
    assert history.starved == 3
    assert history.decisions == [decision()]
    assert history.latest().name == "job"


def test_history_drops_times_that_come_again_when_the_clock_was_set_back():
    history = History()
    for now in (10.0, 11.0, 12.0, 13.0, 11.5, 12.5):
        add(history, now, job(source_rate=now))
    known = history.job("job")
    assert known.times == known.series("throughput") == [10.0, 11.0, 11.5, 12.5]
    assert {len(counts) for counts in (*known.cores_by_executor().values(), *known.cores_by_node().values())} == {4}


def test_history_series_of_unknown_values_are_nan():
    history = add(History(), 1.0, job()).job("job")
    for name in ("latency", "latency_p99", "predicted", "target"):
        assert math.isnan(history.series(name)[0])
    assert (history.bound, history.starved) == ((), 0)


def test_history_returns_cores_by_executor_and_node():
    history = add(History(), 1.0, job())
    add(history, 2.0, job(cores={1: 3}))
    assert history.job("job").cores_by_executor() == {"op[0]": [3, 3], "op[1]": [1, 1]}
    assert history.job("job").cores_by_node() == {"tcp://a:1": [2, 0], "tcp://b:1": [2, 4]}
    assert history.job("job").cores_by_executor(last=1) == {"op[0]": [3], "op[1]": [1]}
    assert history.job("job").cores_by_node(last=1) == {"tcp://a:1": [0], "tcp://b:1": [4]}
    assert (history.job("job").executors, history.job("job").nodes) == (("op[0]", "op[1]"), ("tcp://a:1", "tcp://b:1"))


def test_history_with_removed_node_keeps_its_address():
    history = add(History(), 1.0, job(cores={0: 3}))
    add(history, 2.0, replace(job(), executors=(executor(0, {0: 3}),)), nodes=NODES[1:])
    assert history.job("job").cores_by_node() == {"tcp://a:1": [3, 0], "tcp://b:1": [1, 3]}


def test_history_counts_each_address_over_changes_of_nodes():
    history = add(History(), 1.0, job())
    add(history, 2.0, job(), nodes=NODES[::-1])
    add(history, 3.0, job(), nodes=(*NODES, NodeSnapshot("tcp://c:1", "c", 4)))
    assert history.job("job").cores_by_node() == {"tcp://a:1": [2, 2, 2], "tcp://b:1": [2, 2, 2]}


def test_history_of_a_large_job_takes_few_bytes_per_snapshot():
    nodes = tuple(NodeSnapshot(f"tcp://h{node}:1", f"h{node}", 8) for node in range(1_000))
    executors = tuple(executor(index, {index % 1_000: 2}) for index in range(3_000))
    history, rows = History(), 20
    add(history, 0.0, JobSnapshot("job", 1, executors), nodes=nodes)
    tracemalloc.start()
    for second in range(1, rows + 1):
        add(history, float(second), JobSnapshot("job", 1, executors), nodes=nodes)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / rows < 1.5 * 4 * (len(nodes) + len(executors)), "a column of four bytes per executor and node"
    assert len(history.job("job").cores_by_node()) == 1_000


def test_history_holds_no_cores_of_executors_of_its_decisions():
    """They take most of the memory of decisions; the history of a job that has ended is kept for long."""
    change = CoreChange("job", 1, ExecutorId("op", 0), {0: 1}, {0: 2})
    large = replace(decision(), wanted={ExecutorId("op", 0): 2}, changes=(change,))
    [kept] = add(History(), 1.0, job(), plan=Plan((), (large,))).job("job").decisions
    assert kept == decision()


def test_history_keeps_only_last_snapshots():
    history = History(length=3)
    for second in range(10):
        add(history, float(second), job(), plan=Plan((), (decision(second),)))
    kept = history.job("job")
    assert kept.times == [7.0, 8.0, 9.0]
    assert [each.number for each in kept.decisions] == [7, 8, 9]
    assert len(kept.series("cores")) == len(kept.cores_by_node()["tcp://a:1"]) == 3


def test_history_of_new_generation_starts_empty():
    history = add(History(), 1.0, job())
    add(history, 2.0, job(generation=2), plan=Plan((), (decision(1), decision(2, generation=2))))
    assert history.job("job").times == [2.0]
    assert [each.number for each in history.job("job").decisions] == [2]


def test_history_keeps_ended_jobs_until_forgotten():
    history = add(History(), 1.0, job("b"), job("a"))
    add(history, 2.0, job("a"))
    assert history.jobs() == ["a", "b"]
    assert history.job("b").times == [1.0]
    history.forget("b")
    history.forget("never seen")
    assert history.jobs() == ["a"]
    with pytest.raises(UnknownJob, match=r"named 'b'\. Jobs with a history: a"):
        history.job("b")


def test_history_drops_oldest_ended_jobs():
    history = History(ended=2)
    for second in range(6):
        add(history, float(second), job(f"j{second}"), job("stays"))
    assert history.jobs() == ["j3", "j4", "j5", "stays"]


def test_history_with_invalid_name_or_length_raises():
    with pytest.raises(PlanningError, match="there is no series named 'speed'"):
        add(History(), 1.0, job()).job("job").series("speed")
    with pytest.raises(PlanningError, match="length is 0"):
        History(length=0)
    with pytest.raises(UnknownJob, match="Jobs with a history: none"):
        History().job("job")


def test_history_adds_200_executors_within_a_millisecond(slowness):
    executors = tuple(executor(i, {i % 2: 2}) for i in range(200))
    snapshot, history = Snapshot(0.0, NODES, (JobSnapshot("job", 1, executors),)), History()
    spent = []
    for _ in range(20):
        start = time.process_time()
        history.add(snapshot, Plan())
        spent.append(time.process_time() - start)
    assert min(spent) < 1e-3 * slowness()

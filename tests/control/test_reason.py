"""The reasons of decisions, one test per kind."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.reason import duration, reason
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


def executor(index=0, cores=None, arrival=1000.0, queue=0, **more):
    held = {0: 2} if cores is None else cores
    done = min(arrival, 1000.0 * sum(held.values()))
    return ExecutorSnapshot(ExecutorId("op", index), 0, held, arrival, 1000.0, done, queue=queue, **more)


def reason_of(*executors, nodes=((8, False), (8, False)), ticks=1, settings=None, **more):
    """Return the last reason after some ticks with the same measurements."""
    made = tuple(NodeSnapshot(f"n{i}", f"h{i}", cores, retiring) for i, (cores, retiring) in enumerate(nodes))
    loop, decisions = ControlLoop(settings or ControlSettings()), ()
    for second in range(ticks):
        job = JobSnapshot("job", 1, tuple(executors), **{"latency_target": 0.05, **more})
        decisions = loop.tick(Snapshot(float(second), made, (job,))).decisions or decisions
    (decision,) = decisions
    return decision.reason


def test_reason_of_overload():
    assert reason_of(executor(queue=300, arrival=2000.0)) == (
        "op[0] is overloaded (backlog up to 150 ms, cores 100 % busy), so cores are planned for 1.5 times the current "
        "throughput."
    )


def test_reason_of_many_overloads_counts_executors():
    executors = [executor(i, {i % 2: 1}, 1000.0, 200) for i in range(6)]
    assert reason_of(*executors).startswith("op[0], op[1], op[2] and 3 more are overloaded (backlog up to 200 ms")


def test_reason_of_predicted_latency_above_target():
    assert reason_of(executor(arrival=1700.0), latency_target=0.004) == (
        "the predicted latency with its current cores is 7.95 ms, the target 4 ms."
    )


def test_reason_of_too_few_cores():
    reason = reason_of(executor(arrival=2100.0), latency_target=None)
    assert reason == "its cores are too few for 2,310 tuples/s (headroom included)."


def test_reason_of_too_few_cores_for_rows_that_came_before():
    waiting = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 2}, 0.0, 100.0, throughput=100.0, queue=2_000)
    assert reason_of(waiting) == ("its cores are too few for a backlog of 10 s, although no tuples arrive just now.")


@pytest.mark.parametrize("target", [0.05, None])
def test_reason_of_executors_without_cores(target):
    assert reason_of(executor(0, {}, 0.0), executor(1), latency_target=target) == "op[0] has no cores."
    assert reason_of(executor(0, {}, 0.0), executor(1, {}), latency_target=target) == "op[0], op[1] have no cores."


def test_reason_of_a_release_of_cores_that_do_not_speed_an_executor_up():
    assert reason_of(executor(arrival=500.0, enough_cores=1)).startswith(
        "cores are released that do not speed it up; threads of op hold the GIL: more than 1 core per node"
    )


def test_reason_of_surplus():
    assert reason_of(executor(cores={0: 8}), ticks=11) == "it has had surplus cores for at least 10 s."


def test_reason_of_retiring_node():
    assert reason_of(executor(), nodes=((8, True), (8, False))) == "n0 is retiring."


def test_reason_of_cores_that_move_home():
    reason = reason_of(executor(cores={1: 2}, bytes_in=1e9))
    assert reason == "cores move to other nodes, to reduce network traffic or to free cores."


def test_reason_of_limiting_shard():
    reason = reason_of(executor(queue=300, arrival=2000.0, shard_load=np.array([1.0, 0.5, 0.5])), ticks=1)
    assert reason.endswith("one shard is 50 % of the load of op[0], so more than 3 cores would not speed it up.")


def test_reason_of_missing_cores_and_unreachable_target():
    reason = reason_of(executor(cores={0: 8}, arrival=8000.0, queue=900), nodes=((8, False),))
    assert "no allocation of 8 cores reaches 50 ms, so this is the best effort; " in reason
    assert reason.endswith("it needs 5 more cores than it can get.")


def test_reason_of_target_below_the_hop():
    reason = reason_of(executor(cores={0: 4}, sojourn=0.001), latency=0.3, ticks=9)
    assert "no allocation of 16 cores reaches 50 ms (299 ms are spent outside of its executors)" in reason


def test_reason_of_pinned_executors_promises_no_cores():
    none = np.empty(0, dtype=np.int64)
    pinned = executor(arrival=4000.0, queue=300, pinned=True)
    job = JobSnapshot("job", 1, (pinned,), latency_target=0.05, latency=0.3)
    demand = SimpleNamespace(
        overloaded=(0,), satisfied=False, feasible=False, hop=0.1, indices=(), most=none, needed=none
    )
    portion = SimpleNamespace(exchanged=False, starved=0)
    assert reason(job, demand, portion, (), {}, (), {}, 0, ControlSettings()) == (
        "the measured latency is 300 ms, the target 50 ms; op[0] (pinned) is overloaded (backlog up to 150 ms, cores "
        "100 % busy), and pinned cores do not follow the load; all of its executors are pinned, so no cores are "
        "planned to reach the target."
    )


@pytest.mark.parametrize(
    ("feasible", "text"),
    [
        (True, "all earlier problems are resolved."),
        (
            False,
            "no allocation of 6 cores reaches 50 ms (6 s are spent outside of its executors), so this is the best "
            "effort.",
        ),
    ],
)
def test_reason_without_problem_reports_resolution_only_if_feasible(feasible, text):
    none = np.empty(0, dtype=np.int64)
    job = JobSnapshot("job", 1, (), latency_target=0.05)
    demand = SimpleNamespace(
        overloaded=(), satisfied=True, feasible=feasible, hop=6.0, indices=(), most=none, needed=none
    )
    portion = SimpleNamespace(exchanged=False, starved=0)
    assert reason(job, demand, portion, (), {}, (), {}, 6, ControlSettings()) == text


def test_reason_of_deferred_change():
    settings = ControlSettings(budget_bytes=10.0)
    executors = [executor(i, state_bytes=20 + i) for i in range(2)]
    reason = reason_of(*executors, nodes=((8, True), (8, False)), settings=settings)
    assert "the change of op[1] is deferred, because it moves" in reason


def test_reason_of_dry_run():
    assert reason_of(executor(arrival=2100.0), dry_run=True).endswith("dry run, so nothing is carried out.")


def test_reason_of_shared_cores():
    reason = reason_of(executor(0, {0: 1}), executor(1, {0: 1}), executor(2, {0: 1}, 3000.0), nodes=((2, False),))
    assert "there are fewer cores than executors, so executors share cores" in reason


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.05, "50 ms"), (1.0, "1 s"), (0.0, "0 us"), (0.0123456, "12.3 ms"), (90, "90 s"), (0.9994, "999 ms"),
        (0.9996, "1 s"), (999.9, "1,000 s"), (86_400.0, "86,400 s"), (-0.05, "-50 ms"),
    ],
)  # fmt: skip
def test_duration_has_three_digits_and_a_unit(seconds, text):
    assert duration(seconds) == text


def test_reason_states_measured_latency_before_the_predicted_one():
    assert reason_of(executor(arrival=1700.0), latency_target=0.004, latency=0.3) == (
        "the measured latency is 300 ms, the target 4 ms; 7.95 ms are predicted with its current cores (headroom "
        "included)."
    )


def test_reason_does_not_deny_a_missed_target_that_the_model_does_not_explain():
    """The model's prediction is within the target, and what was a problem before is none now."""
    job = JobSnapshot("job", 1, (), latency_target=0.08, latency=0.3)
    none, queues = np.empty(0, dtype=np.int64), SimpleNamespace(latency=lambda cores: 0.03)
    demand = SimpleNamespace(
        overloaded=(), satisfied=True, feasible=True, hop=0.01, error=1.0, indices=(), most=none, needed=none,
        current=none, queues=queues,
    )  # fmt: skip
    portion = SimpleNamespace(exchanged=False, starved=0)
    assert reason(job, demand, portion, (), {}, (), {}, 6, ControlSettings()) == (
        "the measured latency is 300 ms, the target 80 ms; 40 ms are predicted with its current cores, so it gets no "
        "more."
    )


def test_reasons_do_not_alternate_at_the_edge_of_the_target():
    """Arrivals around what all cores can just process in time: the target is out of reach in every other second."""
    node, loop, decisions = NodeSnapshot("n0", "h0", 4), ControlLoop(), []
    for second in range(40):
        one = executor(cores={0: 4}, arrival=2300.0 if second % 2 else 2600.0)
        job = JobSnapshot("job", 1, (one,), latency_target=0.00125)
        decisions += loop.tick(Snapshot(float(second), (node,), (job,))).decisions
    assert [decision.feasible for decision in decisions] == [False]


def test_resolved_problem_is_reported_when_it_has_been_away_for_a_while():
    node, loop, decisions = NodeSnapshot("n0", "h0", 4), ControlLoop(), []
    for second in range(30):
        one = executor(cores={0: 4}, arrival=2600.0 if second < 5 else 1500.0)
        job = JobSnapshot("job", 1, (one,), latency_target=0.00125)
        decisions += loop.tick(Snapshot(float(second), (node,), (job,))).decisions
    assert [(decision.time, decision.feasible) for decision in decisions if not decision.changes] == [
        (0.0, False),
        (14.0, True),
    ]

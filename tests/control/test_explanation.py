"""Explanations name the rule that sets each number of cores, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.control.explanation.evidence import Evidence, Pauses
from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.recording import dumps
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import PlanningError, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 2), NodeSnapshot("tcp://b:1", "b", 6))
SETTINGS = ControlSettings()


def executor(index=0, cores=None, arrival=900.0, **more):
    given = {"service_rate": 500.0, "state_bytes": 4 << 20, **more}
    return ExecutorSnapshot(ExecutorId("count", index), 0, cores or {0: 1}, arrival, **given)


def evidence(*executors, target=0.1, nodes=NODES, others=(), decisions=(), **job):
    made = JobSnapshot("words", 1, executors, target, **job)
    return Evidence("words", [], Snapshot(5.0, nodes, (made, *others)), SETTINGS, decisions)


def reasons(*executors, index=0, **more):
    return " | ".join(evidence(*executors, **more).explanation().executors[index].why_so_many)


def test_core_that_keeps_queue_stable_is_explained_by_stability():
    assert "stability: with 1 core its queue would grow" in reasons(executor(cores={0: 2}), target=None)


def test_core_that_keeps_target_is_explained_by_target():
    found = reasons(executor(cores={0: 2, 1: 1}, arrival=700.0), target=0.003)
    assert "target: with 2 cores" in found
    assert "above 3 ms" in found


def test_overloaded_executor_is_explained_by_backlog():
    assert "overload: a backlog of 2 s waits and its cores are 100 % busy" in reasons(
        executor(throughput=500.0, queue=1000)
    )


@pytest.mark.parametrize(
    ("arrival", "service", "queue", "text"),
    [
        (0.0, 100.0, 655, "655 rows wait, none arrived just now, and a core serves 100 rows/s"),
        (0.2, None, 2, "2 rows wait, and what a core serves is not measured"),
        (0.0, 100.0, 0, "0 rows/s arrive and a core serves 100 rows/s, a load of 0.00 cores"),
        (9.0, 100.0, 655, "9 rows/s arrive and a core serves 100 rows/s, a load of 0.09 cores"),
    ],
)
def test_rows_that_wait_are_told_where_none_arrive(arrival, service, queue, text):
    measured = executor(arrival=arrival, service_rate=service, queue=queue)
    assert evidence(measured).explanation().executors[0].summary == f"1 core; {text}"


def test_executor_of_a_worker_that_stopped_reporting_is_not_said_to_process_nothing():
    # As `SnapshotBuilder` has it: pinned, with its last rates, but without what is stale.
    stale = evidence(executor(service_rate=None, pinned=True, throughput=900.0)).explanation().executors[0]
    assert stale.summary == "1 core; 900 rows/s arrive, and what a core serves is not measured"
    assert "or its worker has stopped reporting" in stale.why_so_many[0]


def test_job_on_full_cluster_is_explained_by_sharing():
    found = reasons(executor(cores={0: 1}, arrival=5000.0), nodes=NODES[:1])
    assert "sharing: it needs" in found
    assert "gets 2" in found


def test_shard_that_carries_most_load_limits_cores():
    import numpy as np

    loaded = executor(cores={0: 2}, arrival=5000.0, shard_load=np.array([8.0, 1.0, 1.0]))
    assert "limit: more than 3 cores would not speed it up now, because one shard has 80 %" in reasons(loaded)


def test_pinned_unmeasured_and_static_executors_say_so():
    assert "pinned" in reasons(executor(pinned=True))
    assert "has not been measured" in reasons(executor(service_rate=None, arrival=0.0))
    static = evidence(executor(), paradigm="static").explanation()
    assert "does not change its cores" in static.executors[0].why_so_many[0]
    assert static.doubled is None


def test_core_of_a_resource_centric_job_stays_at_home_and_nothing_about_its_moves_is_said():
    found = evidence(executor(), paradigm="resource-centric").explanation().executors[0]
    assert found.why_there == (
        "all are at its home tcp://a:1, where its receiver and its state are",
        "paradigm 'resource-centric': its core stays at home",
    )


def test_gil_bound_operator_is_named_in_count_and_place(kit):
    executors = kit.executors("op", [0], [1], 1000.0, gil=1)
    load = kit.Load("words", lambda now: 2500.0, [(executors, kit.even(1))], target=0.05)
    plant = kit.Plant(kit.nodes(3, 4), [load]).run(25, ControlLoop())
    [bound] = Evidence("words", plant.snapshots, plant.snapshot(), SETTINGS).explanation().executors
    assert "GIL: threads of op hold it, so 1 core per node" in " ".join(bound.why_so_many)
    assert len(bound.cores) == 3
    assert "threads of op hold the GIL" in " ".join(bound.why_there)


def test_place_tells_full_home_network_load_and_state():
    other = JobSnapshot("other", 1, (executor(1, {0: 1}, pinned=True),))
    [spread] = evidence(executor(cores={0: 1, 1: 1}, arrival=800.0), others=(other,)).explanation().executors
    there = " | ".join(spread.why_there)
    assert "1 of 2 cores is at its home tcp://a:1" in there
    assert "1 on tcp://b:1, another host; its home has 2 slots: 1 are its own, other executors have 1" in there
    assert "a core that changes its node takes about 2.0 MiB with it" in there
    [naive] = evidence(executor(bytes_in=8e6), planner="naive").explanation().executors
    assert "takes the first nodes with free cores" in " ".join(naive.why_there)
    assert "locality" not in " ".join(naive.why_there)
    [near] = evidence(executor(cores={0: 2}, bytes_in=8e6)).explanation().executors
    assert "above 512.0 kiB/s, so it belongs at home" in " ".join(near.why_there)


def test_twice_the_load_needs_more_cores_and_moves_state():
    explained = evidence(executor(cores={0: 2}, bytes_in=10.0)).explanation()
    [one] = explained.executors
    assert one.doubled > one.wanted
    assert explained.doubled.unchanged == float("inf")
    assert explained.doubled.predicted < 0.1
    assert explained.doubled.moved_bytes > 0


def test_explanation_lists_newest_decisions_of_executor_first():
    change = {"executor": "count[0]", "before": {"tcp://a:1": 1}, "after": {"tcp://a:1": 2}, "moved_bytes": 1 << 20}
    made = [
        {"number": number, "time": float(number), "applied": number != 2, "reason": "so.", "changes": [change]}
        for number in (1, 2, 3, 4)
    ]
    explained = evidence(executor(), executor(1), decisions=made).explanation()
    assert explained.executors[0].decisions == (
        "#4, 1 s ago: 1 → 2 cores, 1.0 MiB of state moved: so.",
        "#3, 2 s ago: 1 → 2 cores, 1.0 MiB of state moved: so.",
        "#2, 3 s ago: 1 → 2 cores, 1.0 MiB of state moved (not carried out): so.",
    )
    assert explained.executors[1].decisions == ()


def test_planned_decision_is_the_one_that_the_loop_makes(kit):
    executors = kit.executors("op", [0, 1, 2], [2, 2, 2], 1000.0, state=1 << 24)
    load = kit.Load("words", lambda now: 4000 if now < 12 else 9000, [(executors, kit.even(3))], target=0.03)
    plant = kit.Plant(kit.nodes(4, 6), [load], seed=1, noise=0.04).run(30, ControlLoop())
    changed = [number for number, plan in enumerate(plant.plans) if plan.changes]
    assert changed
    for number in changed:
        found = Evidence("words", plant.snapshots[:number], plant.snapshots[number], SETTINGS).planned(
            Pauses(0.01, 0.2)
        )
        [decision] = plant.plans[number].decisions
        made = {change.executor: sum(change.after.values()) for change in decision.changes}
        assert {change.executor: sum(change.after.values()) for change in found.changes} == made
        assert (found.reason, found.predicted, found.moved_bytes) == (
            decision.reason,
            decision.predicted,
            decision.moved_bytes,
        )
        assert found.pause in (0.01, 0.2)


def test_preview_leaves_loop_as_it_is(kit):
    executors = kit.executors("op", [0, 1], [2, 2], 1000.0)
    load = kit.Load("words", lambda now: 4000 if now < 8 else 9000, [(executors, kit.even(2))], target=0.03)
    plant = kit.Plant(kit.nodes(3, 6), [load], seed=2, noise=0.04).run(20, ControlLoop())
    loop = ControlLoop()
    for snapshot, plan in zip(plant.snapshots, plant.plans, strict=True):
        loop.preview(snapshot)
        assert loop.tick(snapshot).changes == plan.changes


def test_explanation_has_text_table_and_frame():
    given = evidence(executor(), executor(1, {1: 1}))
    before = dumps([given.current])
    explained = replace(given.explanation(), sections={"Windows": "1 <window>"})
    text = str(explained)
    assert text.startswith("words: 2 cores; target 100 ms")
    assert str(given.explanation("count")).startswith("words, operator count: 2 cores")
    assert "why so many:" in text
    assert "Windows:\n  1 <window>" in text
    assert "&lt;window&gt;" in explained._repr_html_()
    assert "count[1]" in explained._repr_html_()
    frame = explained.to_pandas()
    assert frame["executor"].tolist() == [0, 1]
    assert frame["at_home"].tolist() == [1, 0]
    assert dumps([given.current]) == before


def test_explanation_of_ended_job_announces_no_decision():
    given = evidence(executor())
    announced = "next decision: ", "the next decision gives it", "at twice the load"
    running, ended = str(given.explanation()), str(given.explanation(ended="finished"))
    assert all(text in running for text in announced)
    assert "\nfinished: no decision follows; its last measurements are explained\n" in ended
    assert not any(text in ended for text in announced)


def test_job_with_right_cores_is_explained_without_change():
    planned = evidence(executor(cores={0: 2}, arrival=600.0)).planned()
    assert planned.changes == ()
    right = "its cores are right, so nothing changes."
    assert str(planned).splitlines()[1] == right
    announced = "finished: no decision follows; its last measurements suggest this one"
    assert str(replace(planned, ended="finished")).splitlines()[1:3] == [announced, right]


def test_explanation_of_unknown_operator_or_unmeasured_job_is_refused():
    with pytest.raises(UnknownOperator, match=r"no stateful operator 'cont': choose from \['count'\]"):
        evidence(executor()).explanation("cont")
    with pytest.raises(PlanningError, match=r"'new' has not been measured: .* unless it has ended"):
        Evidence("new", [], Snapshot(0.0, NODES, ()), SETTINGS)


def test_plan_of_job_with_placement_has_moves_of_homes():
    crowded = evidence(executor(), executor(1, arrival=900.0))
    spread = crowded.planned()
    assert spread.homes is None
    [job] = crowded.current.jobs
    current = replace(crowded.current, jobs=(replace(job, placement="flux"),))
    planned = replace(crowded, snapshots=[], current=current).planned()
    [move] = planned.homes.moves
    assert move.deferred
    assert {move.source, move.target} <= {node.address for node in NODES}
    assert "placement 'flux': load distance" in str(planned)
    assert f"home of {move.executor}: {move.source} → {move.target}" in str(planned)
    assert "periods in a row" in planned.homes.reason


def test_surplus_that_has_not_lasted_is_explained_by_what_is_waited_for():
    given = evidence(executor(cores={0: 2}, arrival=100.0))
    waits = "until the surplus has lasted for 10 s"
    assert str(given.planned()).splitlines()[1].startswith("nothing changes yet: count[0] ")
    assert waits in given.planned().reason
    spare = replace(given, snapshots=[replace(given.current, now=float(second)) for second in range(5)])
    assert spare.planned().reason.startswith("nothing changes yet: count[0] has 1 core more than it needs")
    assert waits in spare.planned().reason
    done = replace(given, snapshots=[replace(given.current, now=float(second)) for second in range(-5, 5)])
    assert done.planned().reason == "it has had surplus cores for at least 10 s."


def test_surplus_of_a_job_without_target_waits_for_other_executors():
    given = evidence(executor(cores={0: 2}, arrival=100.0), target=None)
    found = replace(given, snapshots=[replace(given.current, now=float(second)) for second in range(5)]).planned()
    assert "which it keeps while no other executor needs them, since the job has no latency target" in found.reason


def test_queue_that_grows_at_another_executor_is_not_blamed_on_this_one():
    import numpy as np

    skewed = np.array([8.0, 1.0, 1.0])
    hot = executor(0, cores={0: 2, 1: 1}, arrival=5000.0, shard_load=skewed, queue=9_000, entry=False)
    light = executor(1, cores={1: 2}, arrival=400.0)
    assert "stability" not in reasons(hot, light, index=1, target=0.003)
    assert "target: with " in reasons(hot, light, index=1, target=0.003)
    assert "stability: with 2 cores its queue would grow" in reasons(hot, light, index=0, target=0.003)

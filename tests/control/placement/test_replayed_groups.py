"""Replayed and previewed plans of key groups: beside what was recorded, with what moves cost and gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.explanation.evidence import Evidence
from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.control.placement.recorded_groups import RecordedGroupPlanning
from dask_elastic.control.placement.regrouped import regrouped
from dask_elastic.control.placement.replayed_groups import groups_summaries, replayed_groups
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.recording import dumps, loads
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
LOADS, OWNERS = [0.2, 0.2, 0.2, 0.1, 0.05, 0.05], [0, 0, 0, 0, 1, 1]
RATE = 1_000.0


def snapshot(now, owners=OWNERS, placement="flux", load=LOADS, **about):
    """A job whose groups have some loads, and rows in proportion."""
    executors = []
    for index in range(2):
        here = np.array(owners) == index
        own = np.where(here, load, 0.0)
        known = {"shard_load": own, "shard_bytes": np.where(here, 1e6, 0.0), "groups": np.flatnonzero(here)}
        executors.append(
            ExecutorSnapshot(
                ExecutorId("count", index), index, {index: 1}, RATE * own.sum(), RATE, queue=10, sojourn=0.002,
                state_bytes=int(1e6 * here.sum()), **known,
            )
        )  # fmt: skip
    job = JobSnapshot(
        "words", 1, tuple(executors), 0.1, "resource-centric", placement=placement, latency=0.004, **about
    )
    return Snapshot(float(now), NODES, (job,))


def ended(number, pause, settled, strategy="progressive"):
    return EndedGroupMove(number, "count", strategy, 1, 1_000_000, 1_000, pause, 2 * pause, settled, 0.01)


@given(st.lists(st.integers(0, 1), min_size=6, max_size=6), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_regrouped_job_has_the_loads_rates_and_state_of_the_same_groups(owners, load):
    [job] = snapshot(0.0, load=load).jobs
    made = regrouped(job, {"count": owners})
    for name in ("arrival_rate", "state_bytes"):
        assert sum(getattr(one, name) for one in made.executors) == pytest.approx(
            sum(getattr(one, name) for one in job.executors)
        )
    after = GroupMap.of(made, {}).operators["count"]
    assert after.owner.tolist() == owners
    assert after.load == pytest.approx(np.array(load))
    for index, one in enumerate(made.executors):
        assert one.shard_load.sum() == pytest.approx(np.array(load)[np.array(owners) == index].sum())
        assert one.arrival_rate == pytest.approx(RATE * one.shard_load.sum(), abs=1e-6)
        if one.arrival_rate > 1e-3:
            assert one.service_rate == pytest.approx(RATE)
    back = regrouped(made, {"count": OWNERS})
    for one, before in zip(back.executors, job.executors, strict=True):
        assert one.arrival_rate == pytest.approx(before.arrival_rate, abs=1e-6)
        assert one.state_bytes == before.state_bytes


def test_job_whose_loads_are_not_measured_is_regrouped_without_them():
    [job] = snapshot(0.0).jobs
    bare = replace(job, executors=tuple(replace(one, shard_load=None) for one in job.executors))
    made = regrouped(bare, {"count": [1] * 6, "other": [0]})
    assert [one.groups.tolist() for one in made.executors] == [[], [*range(6)]]
    assert [one.arrival_rate for one in made.executors] == [one.arrival_rate for one in job.executors]


def test_replay_shows_what_moves_beside_what_was_recorded():
    recorded = [snapshot(now, placement="spread") for now in range(15)]
    moved, pauses = [1, 0, 0, 0, 1, 1], [ended(7, 0.08, 14.5), ended(8, 0.03, 14.5)]
    # The first move that a recording has may have ended before it began.
    recorded[0] = snapshot(0, placement="spread", group_moves=(ended(6, 9.0, 0.0),))
    recorded += [snapshot(now, moved, "spread", group_moves=tuple(pauses)) for now in range(15, 45)]
    found = replayed_groups(loads(dumps(recorded)), "flux")
    assert [one.time for one in found] == [10.0, 21.0, 32.0, 43.0]
    assert [(one.recorded_moves, one.recorded_bytes, one.recorded_pause) for one in found] == [
        (0, 0.0, None), (1, 1e6, 0.08), (0, 0.0, None), (0, 0.0, None),
    ]  # fmt: skip
    [second] = [one for one in found if one.moves]
    assert second is found[1]
    assert second.moved_bytes == 1e6 * second.moves == 1e6 * len(second.groups)
    assert all(source == OWNERS[group] != target for group, source, target in second.groups)
    assert [cost.strategy for cost in second.costs] == ["progressive", "synchronised"]
    assert second.pause == next(cost.pause for cost in second.costs if cost.strategy == second.strategy)
    # What is expected has been learnt from the moves of the recording.
    assumed = next(one for one in replayed_groups([snapshot(now) for now in range(45)], "flux") if one.moves)
    assert second.pause != assumed.pause
    assert second.paused_bytes < 0.01 * second.moved_bytes
    assert assumed.paused_bytes == assumed.moved_bytes
    # The executors have 0.7 and 0.1 busy cores at first, then 0.5 and 0.3; the replay moves groups after 20 s.
    assert [one.recorded_distance for one in found] == pytest.approx([0.75, 0.25, 0.25, 0.25], abs=0.15)
    assert [one.distance for one in found[:2]] == pytest.approx([0.75, 0.75])
    assert found[2].distance < 0.2
    [summary] = groups_summaries(found)
    assert (summary.moves, summary.recorded_moves, summary.recorded_pause) == (second.moves, 1, 0.08)


def test_replay_predicts_the_latency_with_the_executors_of_the_placement():
    busy = [0.3, 0.3, 0.3, 0.05, 0.0, 0.05]
    recorded = [snapshot(now, placement="spread", load=busy) for now in range(45)]
    found = replayed_groups(recorded, "flux")
    before, moving, *after = found
    assert moving.moves > 0
    assert {one.measured for one in found} == {0.004}
    # One executor is busy for 0.95 of the time at first; what is predicted counts the moves of the same period.
    assert before.predicted > 2 * moving.predicted
    assert all(one.predicted <= 1.1 * moving.predicted for one in after)
    [summary] = groups_summaries(found)
    assert summary.measured == 0.004
    assert summary.predicted == np.median([one.predicted for one in found])


def test_replay_leaves_out_jobs_whose_groups_do_not_move_or_are_not_known():
    [job] = snapshot(0).jobs
    for other in (
        replace(job, paradigm="executor-centric"),
        replace(job, executors=tuple(replace(one, groups=None) for one in job.executors)),
        replace(job, executors=tuple(replace(one, shard_load=None) for one in job.executors)),
    ):
        assert replayed_groups([Snapshot(float(now), NODES, (other,)) for now in range(25)], "flux") == []


def test_replay_of_a_dry_run_carries_moves_out():
    found = replayed_groups([snapshot(now, dry_run=True) for now in range(45)], "flux")
    assert [bool(one.moves) for one in found] == [False, True, False, False]


@pytest.mark.parametrize("strategy", ["progressive", "synchronised"])
def test_planned_decision_has_the_moves_of_groups_and_what_they_cost_and_gain(strategy):
    measured = [snapshot(now, strategies={"count": strategy}) for now in range(25)]
    settings = PlacementSettings(max_moves=1)
    planned = Evidence("words", measured[:-1], measured[-1], ControlSettings(), placement=settings).planned()
    [operator] = planned.groups.operators
    recorded = RecordedGroupPlanning(settings)
    *_, decision = [made for one in measured[:-1] for made in recorded.tick(one)]
    [decision] = recorded.decide(measured[-1])
    assert {move.group: move.target.index for move in operator.moves} == {
        group: to for part in decision.moves or decision.deferred for group, to in part.items()
    }
    assert operator.moves
    assert operator.strategy == strategy
    assert operator.parts == (1 if strategy == "synchronised" else len(operator.moves))
    assert planned.moved_bytes == operator.moved_bytes == 1e6 * len(operator.moves)
    assert planned.pause == operator.pause > 0
    assert operator.planned_distance < operator.distance
    assert planned.predicted < planned.unchanged
    text = str(planned)
    first = operator.moves[0]
    assert f"group {first.group}: count[0] on tcp://a:1 → count[1] on tcp://b:1, 976.6 kiB of state" in text
    assert f"({strategy})" in text
    assert "Rows wait for" in text


def test_planned_decision_of_a_job_without_planner_has_no_groups():
    spread = snapshot(1, placement="spread")
    planned = Evidence("words", [], spread, ControlSettings()).planned()
    assert (planned.groups, planned.unchanged, planned.moved_bytes, planned.pause) == (None, None, 0, None)


def test_planned_decision_of_even_executors_says_why_groups_stay():
    even = [snapshot(now, [0, 1, 0, 1, 0, 1], load=[0.2] * 6) for now in range(3)]
    planned = Evidence("words", even[:-1], even[-1], ControlSettings()).planned()
    assert planned.groups.operators[0].moves == ()
    assert planned.unchanged == planned.predicted
    assert "loaded evenly enough" in str(planned)
    young = snapshot(3, load=[0.0] * 6, group_moves=(ended(1, 0.1, 99.0),))
    assert "not measured yet, or not since" in str(Evidence("words", [], young, ControlSettings()).planned())

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.recording import dumps, loads
from dask_elastic.control.replay import replay
from dask_elastic.control.replayed_jobs import ReplayedPeriod, replayed_periods, summaries
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import UnknownPlanner


@pytest.fixture(scope="module")
def recorded(kit):
    executors = kit.executors("op", [0, 1, 2], [2, 2, 2], 1000.0, state=1 << 24)
    load = kit.Load("job", lambda now: 4000 if now < 12 else 9000, [(executors, kit.even(3))], target=0.03)
    return kit.Plant(kit.nodes(4, 6), [load], seed=1, noise=0.04).run(40, ControlLoop())


def decided(plans):
    return [(decision.time, decision.changes, decision.reason) for plan in plans for decision in plan.decisions]


def wanted(plans):
    return [sum(decision.wanted.values()) for plan in plans for decision in plan.decisions]


def test_replay_of_recording_repeats_its_decisions(recorded):
    plans = replay(loads(dumps(recorded.snapshots)))
    assert [plan.changes for plan in plans] == [plan.changes for plan in recorded.plans]
    assert decided(plans) == decided(recorded.plans)
    assert any(plan.changes for plan in plans)


def test_replay_with_another_planner_wants_same_number_of_cores(recorded):
    other = replay(recorded.snapshots, planner="naive")
    assert decided(other) != decided(recorded.plans)
    assert wanted(other) == wanted(recorded.plans)


def test_replay_with_other_settings_decides_differently(recorded):
    bold = replay(recorded.snapshots, ControlSettings(growth=3.0))
    grown = next(i for i, plan in enumerate(recorded.plans) if plan.changes)
    assert sum(bold[grown].decisions[0].wanted.values()) > sum(recorded.plans[grown].decisions[0].wanted.values())


def test_replay_with_unknown_planner_raises(recorded):
    with pytest.raises(UnknownPlanner, match="did you mean 'elasticutor'"):
        replay(recorded.snapshots[:1], planner="elasticator")


def test_replayed_periods_of_same_planner_have_recorded_cores(recorded):
    periods = replayed_periods(recorded.snapshots)
    assert [one.recorded_cores for one in periods[1:]] == [one.cores for one in periods[:-1]]
    assert [one.measured for one in periods] == recorded.latency["job"]
    [summary] = summaries(periods)
    assert summary.changes == recorded.changes("job") > 0
    assert summary.moved_bytes == sum(change.moved_bytes for plan in recorded.plans for change in plan.changes)
    assert summary.core_seconds > summary.recorded_core_seconds


def test_replayed_cores_of_another_planner_follow_its_own_plans(recorded):
    [own], [other] = (
        summaries(replayed_periods(recorded.snapshots)),
        summaries(replayed_periods(recorded.snapshots, planner="naive")),
    )
    assert other.changes < 3 * own.changes  # a change that is not carried out would be proposed again and again
    assert other.moved_bytes > own.moved_bytes
    assert other.within_target == pytest.approx(own.within_target, abs=0.2)


def test_replayed_cores_on_worker_that_left_are_the_recorded_ones(recorded):
    first, second = recorded.snapshots[-2:]
    fewer = replace(second, nodes=tuple(replace(node, address=f"new-{node.address}") for node in second.nodes))
    assert replayed_periods([first, fewer])[1].recorded_cores == sum(recorded.cores["job"][-2])


def test_summary_without_predictions_has_none():
    assert summaries([]) == []
    [summary] = summaries([ReplayedPeriod(0.0, "a", None, None, None, 2, 3, 0.0, 1, None)])
    assert (summary.core_seconds, summary.predicted, summary.within_target) == (3.0, None, None)


def test_replay_without_snapshots_returns_no_plans():
    assert replay([]) == []

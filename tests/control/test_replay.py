from __future__ import annotations

import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.recording import dumps, loads
from dask_elastic.control.replay import replay
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


def test_replay_without_snapshots_returns_no_plans():
    assert replay([]) == []

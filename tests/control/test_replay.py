from __future__ import annotations

import pytest

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.recording import dumps, loads
from dask_elastic.control.replay import replay
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import UnknownPlanner


@pytest.fixture(scope="module")
def recorded(kit):
    executors = kit.machines("op", [0, 1, 2], [2, 2, 2], 1000.0, state=1 << 24)
    load = kit.Load("job", lambda now: 4000 if now < 12 else 9000, [(executors, kit.even(3))], target=0.03)
    return kit.Plant(kit.nodes(4, 6), [load], seed=1, noise=0.04).run(40, ControlLoop())


def said(plans):
    return [(decision.time, decision.changes, decision.reason) for plan in plans for decision in plan.decisions]


def test_a_recording_is_decided_as_it_was(recorded):
    plans = replay(loads(dumps(recorded.snapshots)))
    assert [plan.changes for plan in plans] == [plan.changes for plan in recorded.plans]
    assert said(plans) == said(recorded.plans)
    assert any(plan.changes for plan in plans)


def test_another_planner_wants_the_same_cores_on_other_nodes(recorded):
    first = replay(recorded.snapshots, planner="naive")
    assert said(first) != said(recorded.plans)
    for own, other in zip(recorded.plans, first, strict=True):
        assert sum(sum(c.after.values()) for c in own.changes) == sum(sum(c.after.values()) for c in other.changes)
        break


def test_other_settings_decide_otherwise(recorded):
    bold = replay(recorded.snapshots, ControlSettings(growth=3.0))
    grown = next(i for i, plan in enumerate(recorded.plans) if plan.changes)
    assert sum(bold[grown].decisions[0].wanted.values()) > sum(recorded.plans[grown].decisions[0].wanted.values())


def test_a_planner_that_does_not_exist_is_named(recorded):
    with pytest.raises(UnknownPlanner, match="did you mean 'elasticutor'"):
        replay(recorded.snapshots[:1], planner="elasticator")


def test_no_snapshots_no_plans():
    assert replay([]) == []

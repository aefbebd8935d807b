"""Which key groups move: by the measured loads of groups, within budgets, and only if a plan gains several times."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.placement import groups
from dask_elastic.control.placement.groups import GroupPlanning
from dask_elastic.control.placement.planners import home_planner
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import MissingExtra
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
KEY = ("words", 1)


def snapshot(loads, owners, now=0.0, placement="flux", rates=(1.0, 1_000.0), nbytes=10.0, **job):
    """A cluster with two nodes and a job whose groups have some loads at their owners."""
    executors = []
    for index in range(max(owners) + 1):
        here = np.array(owners) == index
        shards = {"shard_load": np.where(here, loads, 0.0), "shard_bytes": np.where(here, nbytes, 0.0)}
        home = index % 2
        executors.append(ExecutorSnapshot(ExecutorId("count", index), home, {home: 1}, *rates, **shards))
    about = {"paradigm": "resource-centric", "placement": placement, **job}
    return Snapshot(now, NODES, (JobSnapshot(*KEY, tuple(executors), **about),))


def ended(number=1, strategy="progressive", pause=0.01, settled=0.0, drain=0.0):
    """A move of a group that has ended."""
    return EndedGroupMove(number, "count", strategy, 1, 1_000, 10, pause, 2 * pause, settled, drain)


def decided(planning, loads, owners, **given):
    planning.observe(snapshot(loads, owners, **given))
    [decision] = planning.decide({KEY: {"count": owners}})
    return decision


def after(owners, decision):
    placed = list(owners)
    for mini in decision.moves:
        for group, executor in mini.items():
            assert placed[group] != executor
            placed[group] = executor
    return placed


@given(
    st.lists(st.floats(0.001, 0.2), min_size=4, max_size=24),
    st.integers(2, 4),
    st.integers(1, 5),
    st.sampled_from(["flux", "eager", "storm"]),
    st.data(),
)
def test_moves_bring_executors_nearer_to_the_mean_in_mini_migrations(loads, executors, most, placement, data):
    owners = [*range(executors)]
    owners += [data.draw(st.integers(0, executors - 1)) for _ in loads[executors:]]
    owners = owners[: len(loads)]
    executors = max(owners) + 1
    decision = decided(
        GroupPlanning(PlacementSettings(patience=1, max_moves=most, least_use=0.0)), loads, owners, placement=placement
    )
    placed = after(owners, decision)
    moved = [group for mini in decision.moves for group in mini]
    assert len(set(moved)) == len(moved), "each group moves once"
    for mini in decision.moves:
        ways = Counter((owners[group] % 2, to % 2) for group, to in mini.items())
        assert 1 <= max(ways.values()) <= most, "a node sends and gets so many groups at a time"
    sums = [np.bincount(which, loads, executors) for which in (owners, placed)]
    distances = [np.abs(total - total.mean()).max() / total.mean() for total in sums]
    assert decision.distance == pytest.approx(distances[0])
    if decision.moves:
        assert decision.planned_distance == pytest.approx(distances[1])
        assert distances[0] - distances[1] >= 0.05 - 1e-9


def test_plan_must_gain_in_several_periods_in_a_row():
    planning, loads, owners = GroupPlanning(PlacementSettings(patience=2)), [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1]
    assert decided(planning, loads, owners).moves == ()
    assert decided(planning, [0.1] * 4, owners, now=10.0).moves == ()
    assert decided(planning, loads, owners, now=20.0).moves == ()
    assert decided(planning, loads, owners, now=30.0).moves != ()


def test_groups_rest_after_a_move():
    planning = GroupPlanning(PlacementSettings(patience=1, cooldown=60.0))
    loads, owners, moved = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1], [1, 1, 0, 0]
    assert decided(planning, loads, owners).moves
    assert decided(planning, loads, moved, now=10.0).moves == ()
    assert decided(planning, loads, moved, now=69.0).moves == ()
    assert decided(planning, loads, moved, now=70.0).moves


def test_plan_that_is_not_carried_out_is_made_again():
    planning = GroupPlanning(PlacementSettings(patience=1, cooldown=60.0))
    loads, owners = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1]
    first = decided(planning, loads, owners)
    assert first.moves
    assert decided(planning, loads, owners, now=10.0).moves == first.moves


@pytest.mark.parametrize("loads", [[0.2, 0.2, 0.2, 0.2], [0.01, 0.01, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
def test_even_or_idle_executors_keep_their_groups(loads):
    assert decided(GroupPlanning(PlacementSettings(patience=1)), loads, [0, 0, 1, 1]).moves == ()


def test_measurements_before_a_move_and_in_its_midst_count_no_more():
    planning, owners = GroupPlanning(PlacementSettings(patience=1, cooldown=0.0)), [0, 0, 1, 1]
    planning.moved(KEY, ended(settled=11.5))
    planning.observe(snapshot([0.9, 0.9, 0.1, 0.1], owners, now=10.5))
    assert planning.decide({KEY: {"count": owners}}) == ()
    planning.observe(snapshot([0.9, 0.9, 0.1, 0.1], owners, now=11.4))
    assert decided(planning, [0.3, 0.3, 0.3, 0.3], owners, now=11.6).distance == 0.0


def test_moves_of_snapshots_are_learnt_once_and_those_of_users_for_what_they_disturb_only():
    loads, owners, settings = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1], PlacementSettings(patience=1)
    told, read, by_hand = (GroupPlanning(settings) for _ in range(3))
    moves = tuple(ended(number, settled=5.0) for number in (1, 2, 3))
    for move in moves:
        told.moved(KEY, move)
    for now in (0.0, 1.0, 2.0):
        # A move is in several snapshots, and is told besides.
        read.observe(snapshot(loads, owners, now=now, group_moves=moves))
        read.moved(KEY, moves[-1])
    assert read.measured.lead("progressive") == told.measured.lead("progressive") == pytest.approx(0.01)
    by_hand.observe(snapshot(loads, owners, group_moves=(ended(settled=5.0, drain=None),)))
    assert by_hand.measured.lead("progressive") == settings.handover
    for planning in (told, read, by_hand):
        assert planning.decide({KEY: {"count": owners}}) == ()
        assert decided(planning, loads, owners, now=5.0).moves


def test_plan_is_carried_out_at_once_where_instances_pause_and_in_parts_otherwise():
    loads, owners = [0.2] * 8 + [0.0] * 8, [0] * 8 + [1] * 8
    settings = PlacementSettings(patience=1, max_moves=2)
    decisions = {}
    for strategy in ("progressive", "synchronised", "auto"):
        planning = GroupPlanning(settings)
        planning.observe(snapshot(loads, owners))
        [decisions[strategy]] = planning.decide({KEY: {"count": owners}}, {KEY: {"count": strategy}})
    assert [len(move) for move in decisions["progressive"].moves] == [2, 2]
    assert [len(move) for move in decisions["synchronised"].moves] == [4]
    assert after(owners, decisions["progressive"]) == after(owners, decisions["synchronised"])
    assert decisions["auto"].strategy == min(decisions["auto"].costs, key=lambda one: one.waiting).strategy
    for decision in decisions.values():
        assert [cost.strategy for cost in decision.costs] == ["progressive", "synchronised"]
        assert len(decision.expected) == len(decision.moves)


@pytest.mark.parametrize(("paused", "parts"), [(1.0, [1, 1]), (0.01, [2])])
def test_parts_of_a_plan_are_small_where_much_state_moves_while_rows_wait(paused, parts):
    loads, owners = [0.2] * 8 + [0.0] * 8, [0] * 8 + [1] * 8
    settings = PlacementSettings(patience=1, max_moves=2, handover=0.05, transfer=100e6)
    planning = GroupPlanning(settings)
    for _ in range(64):
        planning.measured.observe("progressive", 0.0, 4e6, paused * 4e6, 0.01, 0.02)
    planning.observe(snapshot(loads, owners, nbytes=4e6))
    [decision] = planning.decide({KEY: {"count": owners}})
    assert [len(move) for move in decision.moves[:2]] == (parts * 2)[:2]


def test_groups_that_move_are_expected_to_wait_for_their_own_rows_only():
    loads, owners = [0.2] * 8 + [0.0] * 8, [0] * 8 + [1] * 8
    planning = GroupPlanning(PlacementSettings(patience=1, max_moves=2))
    made = snapshot(loads, owners)
    [job] = made.jobs
    job = replace(job, executors=tuple(replace(one, queue=400) for one in job.executors))
    planning.observe(replace(made, jobs=(job,)))
    [decision] = planning.decide({KEY: {"count": owners}})
    # 0.4 s of rows are queued at their executor, of which two of its eight groups have a quarter.
    assert [one.drain for one in decision.expected] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("pauses", "chosen"), [((0.05, 0.5), "progressive"), ((0.5, 0.05), "synchronised")])
def test_auto_chooses_by_what_moves_have_taken(pauses, chosen):
    # An executor is full, and the plan has many parts.
    loads, owners = [0.125] * 8 + [0.0] * 8, [0] * 8 + [1] * 8
    planning = GroupPlanning(PlacementSettings(patience=1, max_moves=1))
    for strategy, pause in zip(("progressive", "synchronised"), pauses, strict=True):
        for _ in range(64):
            planning.measured.observe(strategy, 0.0, 10.0, 10.0, pause, pause + 0.01)
    planning.observe(snapshot(loads, owners, rates=(500.0, 1_000.0)))
    [decision] = planning.decide({KEY: {"count": owners}}, {KEY: {"count": "auto"}})
    assert decision.strategy == chosen


def test_groups_move_as_soon_although_the_clock_was_set_back_for_an_hour():
    planning, owners = GroupPlanning(PlacementSettings(patience=1, cooldown=30.0)), [0, 0, 1, 1]
    loads = [0.3, 0.3, 0.1, 0.1]
    assert decided(planning, loads, owners, now=3_600.0).moves
    # Its groups have moved, and then the clock is set back; what has disturbed the loads ended before.
    planning.moved(KEY, ended(settled=3_611.0))
    reasons = [decided(planning, [0.3, 0.1, 0.3, 0.1], [1, 0, 1, 0], now=now).reason for now in (3_610.0, 0.0)]
    assert all("within the last 30 s" in reason for reason in reasons)
    planning.moved(KEY, ended(2, settled=3_612.0))
    planning.observe(snapshot(loads, owners, now=1.0))
    assert planning.decide({KEY: {"count": [1, 0, 1, 0]}}) == (), "a move has just disturbed the loads"
    assert decided(planning, [0.3, 0.1, 0.3, 0.1], [1, 0, 1, 0], now=31.0).moves


def test_budget_of_bytes_holds_groups():
    loads, owners = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1]
    planning = GroupPlanning(PlacementSettings(patience=1, budget_bytes=5.0))
    assert decided(planning, loads, owners).moves == ()


def test_dry_run_tells_which_groups_would_move_once_a_plan_has_gained_often_enough():
    loads, owners, planning = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1], GroupPlanning(PlacementSettings(patience=2))
    first, second, third = (decided(planning, loads, owners, now=at, dry_run=True) for at in (0.0, 10.0, 20.0))
    assert first.moves == second.moves == third.moves == ()
    assert "2 periods in a row" in first.reason
    assert re.fullmatch(r"a dry run: these groups would move: \d to executor \d(, \d to executor \d)*\.", second.reason)
    assert third.reason == second.reason
    assert first.deferred == second.deferred == third.deferred != ()
    assert [cost.strategy for cost in third.costs] == ["progressive", "synchronised"]
    assert third.moved_bytes == 10.0 * sum(map(len, third.deferred))
    assert third.pause > 0


@pytest.mark.parametrize(
    ("loads", "now", "reason"),
    [
        ([0.01, 0.01, 0.0, 0.0], 100.0, "hardly busy"),
        ([0.2, 0.2, 0.2, 0.2], 100.0, "evenly enough"),
        ([0.3, 0.3, 0.1, 0.1], 100.0, "within the last 60 s"),
    ],
)
def test_reason_says_why_there_is_no_plan(loads, now, reason):
    planning, owners = GroupPlanning(PlacementSettings(patience=1, cooldown=60.0)), [0, 0, 1, 1]
    assert decided(planning, [0.3, 0.3, 0.1, 0.1], [1, 1, 0, 0]).moves
    assert reason in decided(planning, loads, owners, now=now).reason


def test_planner_that_fails_leaves_the_groups_of_other_jobs_their_planner(monkeypatch):
    def failing_planner(name):
        if name == "milp":
            raise MissingExtra("planner 'milp' needs highspy")
        return home_planner(name)

    monkeypatch.setattr(groups, "home_planner", failing_planner)
    loads, owners, planning = [0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1], GroupPlanning(PlacementSettings(patience=1))
    made = snapshot(loads, owners)
    other = replace(made.jobs[0], name="others", placement="milp")
    planning.observe(replace(made, jobs=(other, *made.jobs)))
    failed, planned = planning.decide({KEY: {"count": owners}, ("others", 1): {"count": owners}})
    assert (failed.moves, failed.reason) == ((), "no plan, so groups stay: planner 'milp' needs highspy")
    assert planned.moves


def test_operators_that_are_not_measured_and_jobs_of_others_are_left_out():
    planning = GroupPlanning(PlacementSettings(patience=1))
    planning.observe(snapshot([0.3, 0.3, 0.1, 0.1], [0, 0, 1, 1]))
    assert planning.decide({}) == ()
    bare = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, 1.0, 1.0)
    planning.observe(Snapshot(0.0, NODES, (JobSnapshot(*KEY, (bare,), paradigm="resource-centric", placement="flux"),)))
    assert planning.decide({KEY: {"count": [0, 0]}}) == ()
    assert planning.decide({KEY: {"count": [0, 0]}}) == (), "without snapshots"

"""The placement loop: homes follow load and traffic, rarely and within budget; retiring nodes are emptied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.control.placement.choices import PLACEMENTS, SPREAD, kind_of_placement
from dask_elastic.control.placement.executors import with_moves
from dask_elastic.control.placement.loop import PlacementLoop
from dask_elastic.control.placement.planners import home_planner
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import Traffic

PLANNED = [name for name in PLACEMENTS if name != SPREAD]
EAGER = PlacementSettings(patience=1, max_moves=99)


def crowded(made, placement, nodes=3, count=6, load=0.5):
    """Return a snapshot with all executors of a job on the first node."""
    executors = [made.executor("a", index, 0, load) for index in range(count)]
    return made.snapshot([made.node(number) for number in range(nodes)], made.job(executors, placement))


def at(snapshot, now):
    return replace(snapshot, now=float(now))


def run(loop, snapshot, periods, first=0):
    """Carry out what the loop decides, one period after the other; return the decisions and the last snapshot."""
    found = []
    for period in range(first, first + periods):
        for second in range(10):
            loop.tick(at(snapshot, 11 * period + second))
        [decision] = loop.tick(at(snapshot, 11 * period + 10))
        found.append(decision)
        snapshot = with_moves(snapshot, decision.moves)
    return found, snapshot


@pytest.mark.parametrize("placement", PLANNED)
def test_every_placement_decides_about_a_running_job(made, placement):
    snapshot = crowded(made, placement)
    decisions, after = run(PlacementLoop(EAGER), snapshot, 4)
    again, same = run(PlacementLoop(EAGER), snapshot, 4)
    assert decisions == again
    assert after.jobs[0].executors[0].home == same.jobs[0].executors[0].home
    assert sum(len(decision.moves) for decision in decisions) > 0
    # Hash functions balance keys in the mean only.
    if placement not in ("consistent-hash", "universal-hash"):
        assert decisions[-1].distance < decisions[0].distance


@pytest.mark.parametrize("placement", PLANNED)
def test_every_placement_empties_a_retiring_node(made, placement):
    executors = [made.executor("a", index, index // 2, 0.5) for index in range(6)]
    nodes = [made.node(number, retiring=number == 1) for number in range(3)]
    decisions, after = run(PlacementLoop(), made.snapshot(nodes, made.job(executors, placement)), 3)
    assert 1 not in {one.home for one in after.jobs[0].executors}
    # A part of a plan would leave executors that are not consecutive.
    assert 1 in {move.source for move in decisions[0].moves}
    assert kind_of_placement(placement) != "placement" or {move.source for move in decisions[0].moves} == {1}
    assert decisions[0].release == ()
    assert decisions[-1].release == (nodes[1].address,)


def test_homes_move_as_soon_although_the_clock_was_set_back_for_an_hour(made):
    def moved(setback):
        loop, snapshot, found = PlacementLoop(PlacementSettings(max_moves=1)), crowded(made, "flux"), []
        for second in range(100):
            now = second - (setback if second >= 40 else 0.0)
            for decision in loop.tick(at(snapshot, now)):
                assert decision.time == now
                found.append((second, decision.moves))
                snapshot = with_moves(snapshot, decision.moves)
        return found

    steady, after = moved(0.0), moved(3_600.0)
    assert sum(bool(moves) for _, moves in after) == sum(bool(moves) for _, moves in steady) > 2
    # The clock stands still for one snapshot, so that a period may end one snapshot later.
    assert [second for second, moves in after if moves][-1] <= [second for second, moves in steady if moves][-1] + 1


def test_nothing_is_decided_between_periods_and_for_jobs_without_planner(made):
    loop = PlacementLoop(PlacementSettings(period=5))
    snapshot = crowded(made, "flux")
    assert [len(loop.tick(at(snapshot, second))) for second in range(12)] == [0] * 5 + [1] + [0] * 5 + [1]
    spread = crowded(made, SPREAD)
    static = replace(snapshot, jobs=(replace(snapshot.jobs[0], paradigm="static"),))
    assert PlacementLoop().decide(spread) == PlacementLoop().decide(static) == ()
    [decision] = PlacementLoop(placement="flux").decide(spread)
    assert decision.placement == "flux"


def test_plan_has_to_gain_in_several_periods_before_homes_move(made):
    loop = PlacementLoop(PlacementSettings(patience=3))
    decisions, _ = run(loop, crowded(made, "flux"), 3)
    assert [bool(decision.moves) for decision in decisions] == [False, False, True]
    assert decisions[0].deferred == decisions[1].deferred == decisions[2].moves
    assert "3 periods" in decisions[0].reason


def test_burst_of_one_period_moves_nothing(made):
    loop, even = PlacementLoop(), crowded(made, "flux", nodes=2, count=2)
    even = with_moves(even, PlacementLoop(EAGER).decide(even)[0].moves)
    heavy = made.executor("a", 0, even.jobs[0].executors[0].home, 3.0)
    burst = replace(even, jobs=(replace(even.jobs[0], executors=(heavy, even.jobs[0].executors[1])),))
    decisions = [
        run(loop, snapshot, 1, period)[0][0] for period, snapshot in enumerate([even, burst, even, burst, even])
    ]
    assert not any(decision.moves for decision in decisions)


def test_small_gain_moves_nothing(made):
    executors = [made.executor("a", index, index % 2, 1.0 + 0.01 * (index % 2)) for index in range(4)]
    snapshot = made.snapshot([made.node(0), made.node(1)], made.job(executors, "milp"))
    decisions, _ = run(PlacementLoop(), snapshot, 4)
    assert not any(decision.moves for decision in decisions)


def test_budget_limits_moves_and_bytes_of_a_period(made):
    snapshot = crowded(made, "flux")
    one_move = PlacementLoop(PlacementSettings(patience=1, max_moves=1)).decide(snapshot)[0]
    assert len(one_move.moves) == 1
    no_bytes = PlacementLoop(PlacementSettings(patience=1, budget_bytes=999)).decide(snapshot)[0]
    assert no_bytes.moves == ()
    two = PlacementLoop(PlacementSettings(patience=1, budget_bytes=2_000)).decide(snapshot)[0]
    assert (len(two.moves), two.moved_bytes) == (2, 2_000.0)


def test_state_beyond_the_budget_still_leaves_a_retiring_node(made):
    executors = [made.executor("a", index, 0, 0.5, state=10**10) for index in range(2)]
    nodes = [made.node(0, retiring=True), made.node(1)]
    decisions, after = run(PlacementLoop(), made.snapshot(nodes, made.job(executors)), 2)
    assert [len(decision.moves) for decision in decisions] == [1, 1]
    assert {one.home for one in after.jobs[0].executors} == {1}


def test_home_that_moved_stays_for_the_cooldown(made):
    settings = PlacementSettings(patience=1, cooldown=100)
    loop = PlacementLoop(settings)
    decisions, after = run(loop, crowded(made, "flux", nodes=2, count=2), 2)
    [move] = decisions[0].moves
    assert decisions[1].moves == ()
    # Now the other executor is the heavy one: without the cooldown the light one would move.
    both = [made.executor("a", index, move.target, 0.5) for index in range(2)]
    together = replace(after, jobs=(made.job(both),))
    decisions, _ = run(loop, together, 1, first=2)
    assert {one.executor for one in decisions[0].moves} <= {one.executor for one in both} - {move.executor} or (
        decisions[0].moves == ()
    )


def test_dry_run_defers_all_moves(made):
    snapshot = crowded(made, "flux")
    dry = replace(snapshot, jobs=(replace(snapshot.jobs[0], dry_run=True),))
    [decision] = PlacementLoop(EAGER).decide(dry)
    assert decision.moves == ()
    assert decision.deferred == PlacementLoop(EAGER).decide(snapshot)[0].moves
    assert "dry run" in decision.reason


def test_pause_is_hand_over_and_transfer_of_the_state(made):
    settings = PlacementSettings(patience=1, transfer=1_000.0, handover=0.5)
    [decision] = PlacementLoop(settings).decide(crowded(made, "flux"))
    assert {move.pause for move in decision.moves} == {1.5}
    assert decision.pause == 1.5


def strategies(decision):
    return [(one.executor.index, one.strategy) for one in (*decision.moves, *decision.kept)]


def test_home_stays_where_its_pause_costs_more_than_it_saves(made):
    snapshot = crowded(made, "flux", nodes=2, count=2, load=0.3)
    [cheap] = PlacementLoop(EAGER).decide(snapshot)
    assert strategies(cheap) == [(0, "home")]
    [dear] = PlacementLoop(replace(EAGER, handover=20.0)).decide(snapshot)
    assert (dear.moves, strategies(dear)) == ((), [(0, "none")])
    assert dear.reason == "rows would wait longer for the moves of the plan than they do now, so homes stay."
    assert (dear.planned_distance, dear.planned_collocation) == (dear.distance, dear.collocation)
    [kept] = dear.kept
    none, _, home = kept.costs
    assert none.waiting < home.waiting


def test_moves_pay_off_where_the_placement_has_lasted_long(made):
    loop = PlacementLoop(replace(EAGER, handover=1.0, cooldown=0.0))
    snapshot = crowded(made, "flux", nodes=2, count=2, load=0.3)
    decisions, after = run(loop, snapshot, 40)
    first = next(period for period, decision in enumerate(decisions) if decision.moves)
    assert first > 0
    assert {strategy for one in decisions[:first] for _, strategy in strategies(one)} == {"none"}
    assert {one.home for one in after.jobs[0].executors} == {0, 1}


def test_shards_move_and_the_home_stays_where_that_costs_less(made):
    heavy = [made.executor("a", index, 0, 0.9, state=10**8) for index in range(2)]
    heavy = [replace(one, shard_load=np.full(100, 0.009)) for one in heavy]
    snapshot = made.snapshot([made.node(0, cores=2), made.node(1, cores=2)], made.job(heavy))
    settings = replace(EAGER, transfer=1e7, handover=0.01, max_moves=1)
    [decision] = PlacementLoop(settings).decide(snapshot)
    [move] = decision.moves
    assert (move.strategy, move.source, move.target) == ("labelled", 0, 1)
    assert move.pause == pytest.approx(0.01 + 10**8 / 100 / 1e7)
    assert decision.planned_distance == 0.0 < decision.distance
    after = with_moves(snapshot, decision.moves)
    moved = after.jobs[0].executors[move.executor.index]
    assert (moved.home, moved.cores) == (0, {1: 1})
    # Its load is where its cores are, so that nothing else has to move.
    [later] = PlacementLoop(settings).decide(after)
    assert (later.distance, later.moves, later.kept) == (0.0, (), ())


@pytest.mark.parametrize("why", ["slots", "pinned", "bytes", "retiring", "memory"])
def test_shards_do_not_move_instead_of_the_home(made, why):
    heavy = [made.executor("a", index, 0, 0.9, state=10**8) for index in range(2)]
    heavy = [replace(one, shard_load=np.full(100, 0.009), bytes_in=1e7 if why == "bytes" else 0.0) for one in heavy]
    other = made.executor("b", 0, 1, 0.0)
    taken = replace(other, cores={1: 2 if why == "slots" else 1})
    memory = 3 * 10**8 if why == "memory" else 2**40
    nodes = [made.node(0, 2, retiring=why == "retiring", memory=memory), made.node(1, 2, memory=memory)]
    job = made.job([*heavy, taken])
    if why == "pinned":
        job = made.job([*(replace(one, pinned=True) for one in heavy), taken])
    [decision] = PlacementLoop(replace(EAGER, transfer=1e7, handover=0.01)).decide(made.snapshot(nodes, job))
    assert "labelled" not in {strategy for _, strategy in strategies(decision)}


def test_homes_stay_where_no_core_could_follow(made):
    heavy = [made.executor("a", index, 0, 0.9) for index in range(2)]
    idle = [made.executor("b", index, 1, 0.1) for index in range(2)]
    full = made.snapshot([made.node(0, 2), made.node(1, 2)], made.job([*heavy, *idle]))
    [decision] = PlacementLoop(EAGER).decide(full)
    assert decision.moves == ()
    assert decision.kept
    roomy = replace(full, nodes=(made.node(0, 2), made.node(1, 3)))
    [decision] = PlacementLoop(EAGER).decide(roomy)
    assert [strategy for _, strategy in strategies(decision)][:1] == ["home"]


def test_planner_that_collocates_moves_homes_although_rows_wait_for_it(made):
    executors = [
        made.executor("a", 0, 0, 0.01),
        made.executor("b", 0, 1, 0.01, traffic=[Traffic("a", 0, 1e6)]),
    ]
    snapshot = made.snapshot([made.node(0), made.node(1)], made.job(executors, "albic"))
    settings = PlacementSettings(patience=1, least_use=0, handover=5.0)
    decision = PlacementLoop(settings).decide(snapshot)[0]
    assert {strategy for _, strategy in strategies(decision)} <= {"home"}


def test_albic_brings_one_pair_per_period_together_and_keeps_balance(made):
    # Each b gets all of its rows from the a on the other node.
    def pair(index):
        return [
            made.executor("a", index, index % 2, 0.5),
            made.executor("b", index, 1 - index % 2, 0.5, traffic=[Traffic("a", index, 1e6)]),
        ]

    executors = [one for index in range(4) for one in pair(index)]
    snapshot = made.snapshot([made.node(0), made.node(1)], made.job(executors, "albic"))
    loop = PlacementLoop(PlacementSettings(patience=1, max_moves=2, cooldown=0))
    decisions, _ = run(loop, snapshot, 6)
    shares = [decision.collocation for decision in decisions]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] == 0.0
    assert all(decision.distance <= 0.5 for decision in decisions)
    assert all(len(decision.moves) <= 2 for decision in decisions)


def test_nodes_that_are_missing_or_too_many_are_reported_and_not_drained(made):
    busy = crowded(made, "milp", nodes=2, count=8, load=0.99)
    assert PlacementLoop(EAGER).decide(busy)[0].add >= 1
    loop = PlacementLoop(replace(EAGER, least_use=0, cooldown=0))
    decisions, after = run(loop, crowded(made, "milp", nodes=3, count=3, load=0.1), 5)
    assert [len(decision.remove) for decision in decisions] == [0, 0, 2, 2, 2]
    assert len({one.home for one in after.jobs[0].executors}) == 3


def test_nodes_that_are_not_needed_are_drained_where_the_cluster_scales(made):
    settings = PlacementSettings(patience=1, max_moves=99, scales=True, least_use=0, cooldown=0)
    decisions, after = run(PlacementLoop(settings), crowded(made, "milp", nodes=3, count=3, load=0.1), 6)
    assert len({one.home for one in after.jobs[0].executors}) == 1
    assert sum(len(decision.remove) for decision in decisions) == 2
    assert len(decisions[-1].release) == 2


def test_node_that_serves_slowly_gets_fewer_executors(made):
    def serving(home, factor):
        one = made.executor("a", home, home % 2, 0.5)
        return replace(one, service_rate=one.service_rate / factor) if home % 2 else one

    def homes(factor):
        snapshot = made.snapshot(
            [made.node(0, 8), made.node(1, 8)], made.job([serving(index, factor) for index in range(8)], "milp")
        )
        [decision] = PlacementLoop(EAGER).decide(snapshot)
        return [one.home for one in with_moves(snapshot, decision.moves).jobs[0].executors]

    assert homes(1.0).count(0) == 4
    # At a third of the speed the work of four executors is that of 1.3 there.
    assert homes(3.0).count(0) == 6


def test_mtm_and_oms_remember_the_numbers_of_nodes(made):
    executors = [made.executor("a", index, index // 4, 0.5) for index in range(8)]
    for placement in ("mtm", "oms"):
        loop = PlacementLoop(PlacementSettings(patience=1, cooldown=0))
        snapshot = made.snapshot([made.node(number) for number in range(2)], made.job(executors, placement))
        for period, count in enumerate([2, 3, 2, 3, 2]):
            nodes = [made.node(number, retiring=number >= count) for number in range(3)]
            [decision], snapshot = run(loop, replace(snapshot, nodes=tuple(nodes)), 1, period)
            assert "no plan" not in decision.reason
            homes = [one.home for one in snapshot.jobs[0].executors]
            assert len([home for index, home in enumerate(homes) if index == 0 or homes[index - 1] != home]) <= count
        assert loop.node_counts == [2, 3, 2, 3, 2]


@pytest.mark.parametrize("placement", ["ssm", "oms", "mtm"])
def test_consecutive_placement_ignores_budgets_and_pins_rather_than_break_the_order(made, placement):
    executors = [made.executor("a", index, index % 3, 0.5, state=10**10, pinned=index == 4) for index in range(12)]
    other = made.job([made.executor("b", 0, 0, 1.0)], SPREAD, "other")
    snapshot = made.snapshot([made.node(number) for number in range(3)], made.job(executors, placement), other)
    decisions, after = run(PlacementLoop(PlacementSettings(patience=1)), snapshot, 3)
    homes = [one.home for one in after.jobs[0].executors]
    assert len([home for index, home in enumerate(homes) if index == 0 or homes[index - 1] != home]) == 3
    assert [bool(decision.moves) for decision in decisions] == [True, False, False]
    assert after.jobs[1].executors[0].home == 0


def test_job_without_a_node_that_stays_has_no_plan(made):
    executors = [made.executor("a", 0, 0, 0.5)]
    [decision] = PlacementLoop().decide(made.snapshot([made.node(0, retiring=True)], made.job(executors)))
    assert (decision.moves, decision.reason) == (
        (), "no plan: homes of job 'job' cannot be planned: no node stays. Add workers."
    )  # fmt: skip


def test_unknown_executor_and_idle_job_do_not_end_the_loop(made):
    idle = made.snapshot([made.node(0), made.node(1)], made.job([made.executor("a", 0, 0, 0.0)], "albic"))
    unmeasured = replace(idle.jobs[0].executors[0], service_rate=None, executor=ExecutorId("b", 0))
    job = replace(idle.jobs[0], executors=(*idle.jobs[0].executors, unmeasured))
    decisions, _ = run(PlacementLoop(), replace(idle, jobs=(job,)), 3)
    assert not any(decision.moves for decision in decisions)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"period": 0}, "period is 0: give a finite number above 0"),
        ({"transfer": float("inf")}, "transfer is inf"),
        ({"patience": 0}, "patience is 0: give a whole number of 1 or more"),
        ({"max_moves": 1.5}, r"max_moves is 1\.5: give a whole number"),
        ({"discount": 1.0}, r"discount is 1\.0: give less than 1"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(values, message):
    with pytest.raises(PlanningError, match=message):
        PlacementSettings(**values)


class Counted:
    """A planner that counts its plans; it never finds a move, or the one that another planner finds."""

    def __init__(self, planner=None):
        self.planner, self.plans = planner, 0

    def plan(self, problem, seed=0):
        self.plans += 1
        return problem.placement(problem.current) if self.planner is None else self.planner.plan(problem, seed)


def counted(monkeypatch, planner=None):
    found = Counted(planner)
    monkeypatch.setattr("dask_elastic.control.placement.loop.planner_of_job", lambda *given: found)
    return found


def test_plan_without_gain_is_not_repeated_while_hardly_anything_changes(made, monkeypatch):
    planner = counted(monkeypatch)
    snapshot = crowded(made, "flux")
    decisions, _ = run(PlacementLoop(EAGER), snapshot, 13)
    # One plan, five periods without, and again.
    assert planner.plans == 3
    skipped = [decision.reason.startswith("hardly anything has changed") for decision in decisions]
    assert skipped == [False, *[True] * 5, False, *[True] * 5, False]
    assert [decision.distance for decision in decisions] == [decisions[0].distance] * 13


def test_change_of_load_homes_or_nodes_has_another_plan_made(made, monkeypatch):
    planner = counted(monkeypatch)
    loop, snapshot = PlacementLoop(EAGER), crowded(made, "flux", count=7)
    run(loop, snapshot, 2)
    assert planner.plans == 1
    moved = [made.executor("a", index, min(index, 1), 0.5) for index in range(7)]
    changes = [
        crowded(made, "flux", nodes=4, count=7),
        made.snapshot([made.node(number) for number in range(4)], made.job(moved)),
        made.snapshot([made.node(number, retiring=number == 2) for number in range(4)], made.job(moved)),
        made.snapshot(
            [made.node(number, retiring=number == 2) for number in range(4)],
            made.job([made.executor("a", index, min(index, 1), 0.5 if index else 0.1) for index in range(7)]),
        ),
    ]
    for period, changed in enumerate(changes, 2):
        run(loop, changed, 1, first=period)
        assert planner.plans == period, f"change {period}"


def test_plan_that_gains_is_made_again_in_each_period(made, monkeypatch):
    planner = counted(monkeypatch, home_planner("flux"))
    decisions, _ = run(PlacementLoop(PlacementSettings(patience=9)), crowded(made, "flux"), 4)
    assert planner.plans == 4
    assert all(decision.deferred for decision in decisions)

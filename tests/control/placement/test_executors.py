"""Snapshots become placement problems and placements become moves of homes, without loss in either direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.keys import job_key
from dask_elastic.control.placement.executors import placed_executors, with_moves
from dask_elastic.control.placement.home_moves import home_moves
from dask_elastic.control.placement.measured_loads import PROCESSOR, STATE, PeriodLoads, busy_cores
from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.control.placement.purpose import Purpose
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.placement.check import approach, validate
from dask_elastic.planning.placement.quality import collocation, load_distance
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import SourceHome, Traffic

from .conftest import clusters

SETTINGS = PlacementSettings(max_moves=99, budget_bytes=1e15)


def mean_loads(snapshots):
    loads = PeriodLoads(10.0)
    for snapshot in snapshots:
        loads.add(snapshot)
    return loads.means()


def placed_of(snapshot, which=0, **options):
    return placed_executors(snapshot, snapshot.jobs[which], mean_loads([snapshot]), SETTINGS, **options)


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_problem_has_loads_state_and_homes_of_the_snapshot(snapshot):
    placed = placed_of(snapshot)
    problem, job = placed.problem, snapshot.jobs[0]
    own = len(job.executors)
    assert placed.executors == tuple(one.executor for one in job.executors)
    assert [placed.nodes[bin] for bin in problem.current[:own]] == [one.home for one in job.executors]
    assert problem.state_bytes[:own].tolist() == [one.state_bytes for one in job.executors]
    assert [snapshot.nodes[place].retiring for place in placed.nodes] == problem.draining.tolist()
    # The load of each node that stays is that of all jobs, as a share of its cores.
    scale = sum(snapshot.nodes[place].cores for place in placed.nodes) / 100
    totals = problem.totals(problem.current)[:, placed.resources.index("processor time")] * scale
    for bin, place in enumerate(placed.nodes):
        jobs = snapshot.jobs if problem.live[bin] else snapshot.jobs[:1]
        there = busy_cores([one for some in jobs for one in some.executors if one.home == place])
        assert totals[bin] == pytest.approx(sum(there), abs=1e-9)
    known = {one.executor for one in job.executors}
    sources = {ExecutorId(one.component, one.index) for one in job.sources if not snapshot.nodes[one.node].retiring}
    rates = [part.rate for one in job.executors for part in one.traffic if ExecutorId(*part[:2]) in known | sources]
    assert problem.traffic.sum() == pytest.approx(sum(rates))


@settings(max_examples=80, deadline=None)
@given(clusters(), st.data())
def test_moves_lead_to_the_placement_and_their_gains_sum_to_that_of_the_plan(snapshot, data):
    placed = placed_of(snapshot)
    problem = placed.problem
    wanted = [data.draw(st.integers(0, problem.bins - 1)) for _ in range(problem.groups)]
    placement = problem.placement(approach(problem, np.array(wanted)))
    # All of them, whatever they cost.
    chosen = home_moves(placed, placement, SETTINGS, purpose=Purpose.ORDER)
    moves = chosen.moves
    assert chosen.kept == ()
    again = placed_of(with_moves(snapshot, moves))
    own = len(placed.executors)
    assert again.problem.current[:own].tolist() == placement.bin[:own].tolist()
    assert len(moves) == placement.moves
    assert sum(move.moved_bytes for move in moves) == pytest.approx(placement.cost)
    before, after = (load_distance(problem, bin) for bin in (problem.current, placement.bin))
    assert chosen.distance == pytest.approx(after, abs=1e-6)
    assert sum(move.gain for move in moves) == pytest.approx((before - after) / (problem.mean or 1.0), abs=1e-6)
    total = problem.traffic.sum()
    gained = (collocation(problem, placement.bin) - collocation(problem, problem.current)) * total
    assert sum(move.traffic for move in moves) == pytest.approx(gained, abs=1e-3)


def used(placed, chosen):
    """Return the loads of bins after the moves: where shards have moved, processor time is needed elsewhere."""
    problem = placed.problem
    totals = problem.totals(chosen.bin)
    for one in chosen.moves:
        if one.strategy == "labelled":
            load = problem.loads[placed.executors.index(one.executor), 0]
            totals[placed.nodes.index(one.source), 0] -= load
            totals[placed.nodes.index(one.target), 0] += load
    return totals


@settings(max_examples=100, deadline=None)
@given(clusters(), st.data())
def test_moves_by_any_strategy_keep_the_rules_of_the_problem(snapshot, data):
    placed = placed_of(snapshot)
    problem = placed.problem
    wanted = [data.draw(st.integers(0, problem.bins - 1)) for _ in range(problem.groups)]
    rates = MoveRates(*data.draw(st.tuples(st.floats(0, 10), st.floats(1e3, 1e9))))
    horizon = data.draw(st.floats(0, 1e4))
    placement = problem.placement(approach(problem, np.array(wanted)))
    purpose = data.draw(st.sampled_from([Purpose.BALANCE, Purpose.TRAFFIC]))
    chosen = home_moves(placed, placement, SETTINGS, rates, purpose, horizon)
    validate(replace(problem, capacity=None), problem.placement(chosen.bin))
    assert (used(placed, chosen) <= problem.limit * (1 + 1e-6)).all()
    assert len(chosen.moves) + len(chosen.kept) == placement.moves
    for one in (*chosen.moves, *chosen.kept):
        costs = {cost.strategy: cost for cost in one.costs}
        assert costs[one.strategy].waiting <= min(cost.waiting for cost in one.costs if cost.allowed) or (
            one.strategy == "none"
        )
        source = snapshot.nodes[one.source]
        assert one.strategy == "home" or not source.retiring
    after = placed_of(with_moves(snapshot, chosen.moves)).problem
    assert after.totals(after.current)[:, 0].sum() == pytest.approx(problem.totals(problem.current)[:, 0].sum())


@settings(max_examples=40, deadline=None)
@given(clusters())
def test_moves_keep_all_measurements_and_cores(snapshot):
    placed = placed_of(snapshot)
    target = int(np.flatnonzero(placed.problem.live)[0])
    bins = np.where(placed.problem.pinned, placed.problem.current, target)
    chosen = home_moves(placed, placed.problem.placement(bins), SETTINGS, purpose=Purpose.ORDER)
    moved = with_moves(snapshot, chosen.moves)
    for one, other in zip(snapshot.jobs[0].executors, moved.jobs[0].executors, strict=True):
        assert (one.executor, one.state_bytes, one.total_cores) == (
            other.executor,
            other.state_bytes,
            other.total_cores,
        )
        assert other.home in other.cores
    assert [job.executors for job in moved.jobs[1:]] == [job.executors for job in snapshot.jobs[1:]]


def test_homes_that_change_places_where_memory_is_scarce_move_both(made):
    # Rows wait less if only the first one moves, but its state has no room beside that of the other.
    executors = [
        made.executor("a", 0, 0, 1.5, 150_000_000),
        made.executor("a", 1, 0, 3.0, 0),
        made.executor("a", 2, 1, 0.0, 150_000_000),
        made.executor("a", 3, 1, 2.0, 0),
    ]
    nodes = [made.node(0, memory=2**29), made.node(1, memory=2**29)]
    placed = placed_of(made.snapshot(nodes, made.job(executors)))
    placement = placed.problem.placement([1, 0, 0, 1])
    validate(placed.problem, placement)
    chosen = home_moves(placed, placement, SETTINGS, MoveRates(0.01, 1e9))
    assert (used(placed, chosen) <= placed.problem.limit * (1 + 1e-6)).all()
    assert {(one.executor.index, one.strategy) for one in chosen.moves} == {(0, "home"), (2, "home")}


def test_pinned_and_held_executors_leave_only_retiring_nodes(made):
    executors = [made.executor("a", index, index % 2, 1.0, pinned=index < 2) for index in range(4)]
    snapshot = made.snapshot([made.node(0), made.node(1, retiring=True)], made.job(executors))
    problem = placed_of(snapshot, held=frozenset({ExecutorId("a", 2), ExecutorId("a", 3)})).problem
    assert problem.pinned.tolist() == [True, False, True, False]


def test_sources_and_other_jobs_count_where_they_stay(made):
    traffic = [Traffic("rows", 0, 5.0), Traffic("unknown", 0, 9.0)]
    job = made.job([made.executor("a", 0, 0, 1.0, traffic=traffic)], sources=[SourceHome("rows", 0, 1)])
    other = made.job([made.executor("a", 0, 1, 2.0)], name="other")
    nodes = [made.node(0), made.node(1), made.node(2, cores=0)]
    placed = placed_of(made.snapshot(nodes, job, other))
    assert placed.nodes == (0, 1)
    assert placed.problem.pinned.tolist() == [False, True, True]
    assert placed.problem.traffic.toarray()[1].tolist() == [5.0, 0.0, 0.0]
    assert placed.problem.shares(placed.problem.current).tolist() == pytest.approx([0.25, 0.5])


def test_bottleneck_is_the_resource_that_is_used_most(made):
    def bottleneck(load, state, memory=2**30):
        nodes = [made.node(number, memory=memory) for number in range(2)]
        return placed_of(made.snapshot(nodes, made.job([made.executor("a", 0, 0, load, state)]))).bottleneck

    assert bottleneck(3.0, 1_000) == "processor time"
    assert bottleneck(0.1, 2**28) == "memory"
    assert bottleneck(0.1, 2**28, memory=0) == "processor time"


def test_fast_node_has_more_capacity_and_its_load_counts_for_more(made):
    executors = [made.executor("a", index, index, 2.0) for index in range(2)]
    snapshot = made.snapshot([made.node(0), made.node(1)], made.job(executors))
    speeds = {snapshot.nodes[0].address: 2.0, snapshot.nodes[1].address: 0.5}
    problem = placed_of(snapshot, speeds=speeds).problem
    assert problem.shares(problem.current).tolist() == pytest.approx([0.5, 0.5])
    assert problem.weight[0] == pytest.approx(4 * problem.weight[1])


def test_no_problem_without_a_node_that_stays(made):
    snapshot = made.snapshot([made.node(0, retiring=True)], made.job([made.executor("a", 0, 0, 1.0)]))
    with pytest.raises(PlanningError, match="job 'job' cannot be planned: no node stays"):
        placed_of(snapshot)


def test_mean_loads_are_means_over_time_and_state_is_the_newest(made):
    def at(load, state, rate):
        one = made.executor("a", 0, 0, load, state, [Traffic("rows", 0, rate)])
        return made.snapshot([made.node(0)], made.job([one]))

    snapshots = [at(1.0, 10, 100.0), at(2.0, 30, 300.0)]
    loads = mean_loads(snapshots)[job_key(snapshots[0].jobs[0])]
    assert loads.executors == [ExecutorId("a", 0)]
    assert loads.needs[0, [PROCESSOR, STATE]].tolist() == [1.5, 30.0]
    assert loads.traffic == [[Traffic("rows", 0, 200.0)]]

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.papers.workloads import substreams
from dask_elastic.papers.workloads.core_demands import core_demands
from dask_elastic.papers.workloads.key_shuffles import KeyShuffles
from dask_elastic.papers.workloads.node_loads import SIZES, Size, drifted, scale_in, varied_nodes
from dask_elastic.papers.workloads.operator_chains import RATE, operator_chain
from dask_elastic.papers.workloads.popularity import gaussian_shares, mean_key, zipf_shares
from dask_elastic.planning.cores import assign_cores
from dask_elastic.planning.placement.quality import collocation
from dask_elastic.vocab.errors import PlanningError, TopologyError


@given(st.integers(1, 500), st.floats(0, 3))
@settings(max_examples=50, deadline=None)
def test_zipf_shares_decrease_and_add_up_to_one(count, exponent):
    shares = zipf_shares(count, exponent)
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) <= 0).all()
    assert shares[0] / shares[-1] == pytest.approx(count**exponent)


@given(st.integers(3, 200), st.floats(0.05, 0.95), st.floats(0.2, 2))
@settings(max_examples=50, deadline=None)
def test_gaussian_shares_have_given_mean(count, part, width):
    mean, deviation = 1 + part * (count - 1), width * count
    shares = gaussian_shares(count, mean, deviation)
    assert shares.sum() == pytest.approx(1)
    assert mean_key(shares) == pytest.approx(mean, abs=1e-6 * count)


def test_shares_with_invalid_arguments_raise_planning_error():
    for count, exponent, message in (
        (0, 1, "count is 0"),
        (3, -1, "exponent is -1"),
        (3, float("nan"), "exponent is nan"),
    ):
        with pytest.raises(PlanningError, match=message):
            zipf_shares(count, exponent)
    for mean, deviation, message in ((1, 5, "mean is 1"), (10, 5, "mean is 10"), (5, 0, "deviation 0")):
        with pytest.raises(PlanningError, match=message):
            gaussian_shares(10, mean, deviation)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("varies", [0.0, 40.0, 95.0])
def test_varied_nodes_changes_load_of_one_fifth_of_nodes(size, varies):
    problem = varied_nodes(3, size, varies, max_moves=10)
    away = problem.shares(problem.current) - 50
    # Twenty groups that vary by 5 % each leave a node within 2 points, except with negligible probability.
    low, high = (away < -varies / 2 + 2).sum(), (away > varies / 2 - 2).sum()
    if varies:
        assert low == high == size.nodes // 10
    assert (np.abs(away) < varies / 2 + 2).all()
    assert (problem.load >= 0).all()
    assert problem.max_moves == 10


def test_varied_nodes_distributes_groups_and_operators_evenly():
    problem = varied_nodes(0, SIZES[0])
    assert (np.bincount(problem.current) == 20).all()
    assert (np.bincount(problem.operator) == 40).all()
    pairs = np.bincount(problem.operator * 20 + problem.current)
    assert (pairs == 2).all()


def test_varied_nodes_changes_at_least_half_of_groups_of_varied_node():
    plain, varied = (varied_nodes(5, SIZES[0], varies).load for varies in (0.0, 40.0))
    changed = np.abs(varied / plain - 1) > 1e-9
    per_node = np.bincount(SIZES[0].current, changed)
    assert (per_node > 0).sum() == 4
    assert ((per_node == 0) | (per_node >= 10)).all()
    assert changed.sum() < 4 * 20


def test_workload_is_equal_for_same_seed_and_differs_for_other_seed():
    for make in (varied_nodes, scale_in, operator_chain):
        assert np.array_equal(make(1).load, make(1).load)
        assert not np.array_equal(make(1).load, make(2).load)


def test_varied_nodes_with_invalid_size_or_variation_raises_planning_error():
    for nodes, groups, operators in ((3, 10, 2), (5, 10, 3), (0, 0, 1)):
        with pytest.raises(PlanningError, match="distributed evenly"):
            Size(nodes, groups, operators)
    for varies in (-1, 96, float("nan")):
        with pytest.raises(PlanningError, match="varies is"):
            varied_nodes(0, varies=varies)


@pytest.mark.parametrize("overloaded", [0, 1, 5])
def test_scale_in_drains_ten_nodes_while_others_are_full(overloaded):
    problem = scale_in(2, overloaded=overloaded)
    shares = problem.shares(problem.current)
    assert problem.draining.sum() == 10
    assert (np.abs(shares - 100) < 1e-9).sum() == overloaded
    assert not (problem.draining & (shares > 99)).any()
    assert problem.max_moves == 20


def test_scale_in_without_remaining_node_raises_planning_error():
    with pytest.raises(PlanningError, match="one must stay"):
        scale_in(0, Size(4, 8, 2), leaving=2, overloaded=3)
    with pytest.raises(PlanningError, match="one must stay"):
        scale_in(0, Size(4, 8, 2), leaving=4, overloaded=0)


def test_drift_changes_all_groups_of_node_by_one_factor():
    problem = replace(varied_nodes(0), current=np.random.default_rng(0).integers(0, 20, 400))
    change = drifted(problem, 7).load / problem.load
    factor = {node: set(change[problem.current == node].round(12)) for node in range(20)}
    assert all(len(values) == 1 for values in factor.values())
    assert sum(values != {1.0} for values in factor.values()) == 4
    assert (np.abs(change - 1) <= 0.02).all()


def test_drift_changes_all_resources_and_keeps_load_of_new_groups():
    problem = varied_nodes(0, Size(5, 10, 1))
    current = problem.current.copy()
    current[:5] = -1
    several = replace(problem, load=np.ones((10, 2)), current=current)
    change = drifted(several, 1, nodes=1.0).load
    assert (change[:5] == 1).all()
    assert (change[5:, 0] == change[5:, 1]).all()
    assert (change[5:] != 1).all()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_operator_chain_has_given_share_of_one_to_one_groups(share):
    problem = operator_chain(3, SIZES[0], share)
    traffic, each = problem.traffic.tocsr(), 40
    sends = np.asarray(traffic.sum(axis=1)).ravel()
    assert sends[:-each] == pytest.approx(RATE)
    assert (sends[-each:] == 0).all()
    single = np.diff(traffic.indptr)[:-each] == 1
    assert (single.reshape(9, each).sum(axis=1) == round(share * each)).all()
    # Each sends to a different group, and only to the next operator.
    targets = traffic[np.flatnonzero(single)].indices
    assert len(set(targets.tolist())) == len(targets)
    row, column = traffic.nonzero()
    assert (problem.operator[column] == problem.operator[row] + 1).all()


def test_operator_chain_of_one_to_one_groups_can_be_fully_collocated():
    problem = operator_chain(3, SIZES[0], 1.0)
    bin = np.zeros(400, dtype=np.int64)
    bin[:40] = np.arange(40) % 20
    row, column = problem.traffic.nonzero()
    for source, target in zip(row.tolist(), column.tolist(), strict=True):
        bin[target] = bin[source]
    assert collocation(problem, bin) == 1


def test_operator_chain_with_invalid_arguments_raises_planning_error():
    with pytest.raises(PlanningError, match="one_to_one is"):
        operator_chain(0, one_to_one=1.5)
    with pytest.raises(PlanningError, match="one operator"):
        operator_chain(0, Size(2, 4, 1))


def test_key_shares_change_at_given_rate_of_shuffles():
    never, twice, often = (KeyShuffles(shuffles_per_minute=rate).key_shares(1, 120) for rate in (0, 2, 16))
    assert (np.ptp(never, axis=0) == 0).all()
    assert np.flatnonzero((np.diff(twice, axis=0) != 0).any(axis=1)).tolist() == [29, 59, 89]
    changes = (np.diff(often, axis=0) != 0).any(axis=1).sum()
    # One shuffle every 3.75 s; a shuffle within a window changes two windows, and every fourth one falls on a boundary.
    assert 31 <= changes <= 62
    for shares in (never, twice, often):
        assert shares.sum(axis=1) == pytest.approx(1)


def test_key_shares_of_window_with_shuffle_are_weighted_mean():
    stream = KeyShuffles(shuffles_per_minute=1.5, keys=50)
    fine = stream.key_shares(1, 90, seconds=1.0)
    coarse = stream.key_shares(1, 3, seconds=30.0)
    assert coarse == pytest.approx(fine.reshape(3, 30, 50).mean(axis=1))


def test_tuple_costs_are_normal_and_floored_at_zero():
    for cost in (0.1, 1.0, 20.0):
        stream = KeyShuffles(cost=cost)
        costs = stream.tuple_costs(1, 200_000)
        mean, variance = stream.cost_moments
        assert costs.min() >= 0
        assert costs.mean() == pytest.approx(mean, rel=0.02)
        assert costs.var() == pytest.approx(variance, rel=0.02)
        # The floor raises the mean, and by more where costs are small.
        assert mean >= cost
    assert KeyShuffles(cost=0.1).cost_moments[0] > 0.13


def test_shard_loads_equal_rate_times_mean_cost():
    stream = KeyShuffles(rate=50_000)
    load = stream.shard_loads(2, 30)
    assert load.shape == (30, 8192)
    assert load.sum(axis=1).mean() == pytest.approx(50 * stream.cost_moments[0], rel=0.01)
    assert KeyShuffles(shuffles_per_minute=0).shard_loads(1, 0).shape == (0, 8192)


def test_static_assignment_reaches_printed_share_of_ideal_throughput():
    """Sixth erratum to Elasticutor: 0.90 of ideal on 16 cores, 0.44 on 256."""
    for cores, least, most in ((16, 0.85, 0.95), (256, 0.38, 0.55)):
        reached = []
        for seed in range(5):
            shares = KeyShuffles().key_shares(seed, 1)[0]
            load = np.bincount(KeyShuffles(executors=cores, shards=1).shard_of_key, shares, cores)
            reached.append(load.mean() / load.max())
        assert least < np.mean(reached) < most


def test_key_shuffle_problems_place_shards_on_node_of_executor():
    problems = list(KeyShuffles(executors=6, shards=4).problems(1, windows=3, nodes=4, max_moves=9))
    assert len(problems) == 3
    assert problems[0].current.reshape(6, 4).tolist() == [[executor % 4] * 4 for executor in range(6)]
    assert problems[0].state_bytes.tolist() == [32 * 1024] * 24
    assert problems[2].max_moves == 9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shuffles_per_minute": -1}, PlanningError, "shuffles_per_minute is -1"),
        ({"rate": 0}, PlanningError, "rate is 0"),
        ({"cost": float("inf")}, PlanningError, "cost is inf"),
        ({"keys": 0}, PlanningError, "count is 0"),
        ({"executors": 0}, TopologyError, "executors=0"),
    ],
)
def test_key_shuffles_with_invalid_arguments_raise_error(options, error, message):
    with pytest.raises(error, match=message):
        KeyShuffles(**options)


def test_key_shares_of_zero_seconds_raise_planning_error():
    with pytest.raises(PlanningError, match=r"seconds 0\.0"):
        KeyShuffles().key_shares(0, 1, seconds=0.0)


@pytest.mark.parametrize("nodes", [8, 16])
def test_core_demands_of_successive_periods_can_be_assigned(nodes):
    cores, changes = None, 0
    for demand in core_demands(1, nodes, 5):
        assert demand.wanted.sum() <= demand.capacity.sum()
        now = demand.first() if cores is None else cores
        answer = assign_cores(now, demand.wanted, demand.capacity, demand.state_bytes, demand.home, demand.intensity)
        assert (answer.assignment.sum(axis=0) >= demand.wanted).all()
        assert (answer.assignment.sum(axis=1) <= demand.capacity).all()
        changes += int((answer.assignment != now).any())
        cores = answer.assignment
    assert changes == 5


def test_core_demands_have_given_share_of_data_intensive_executors():
    demand = next(core_demands(1, 16, 1, heavy=0.25))
    heavy = demand.intensity > 512 * 1024
    assert 0.1 < heavy.mean() < 0.4
    assert not (next(core_demands(1, 16, 1, heavy=0.0)).intensity > 512 * 1024).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"utilisation": 1.0}, "utilisation is 1.0"),
        ({"heavy": 1.5}, "heavy 1.5"),
        ({"executors_per_node": 9}, "give 1 to 8"),
        ({"nodes": 0}, "0 nodes"),
    ],
)
def test_core_demands_with_invalid_arguments_raise_planning_error(options, message):
    with pytest.raises(PlanningError, match=message):
        next(core_demands(**{"seed": 0, "nodes": 4, "periods": 1} | options))


def test_gaussian_and_zipf_counts_have_same_rate_and_mean_key():
    gaussian, zipf = substreams.gaussian_counts(1), substreams.zipf_counts(1)
    for counts in (gaussian, zipf):
        assert counts.shape == (120, 100)
        assert counts.sum(axis=1).mean() == pytest.approx(600_000, rel=0.001)
    means = [mean_key(counts.sum(axis=0) / counts.sum()) for counts in (gaussian, zipf)]
    assert means[0] == pytest.approx(means[1], rel=0.002)
    # The same mean, but another skew.
    assert zipf.sum(axis=0).var() != pytest.approx(gaussian.sum(axis=0).var(), rel=0.05)


def test_poisson_counts_are_independent_with_equal_mean_and_variance():
    counts = substreams.poisson_counts(3, np.full((2000, 3), 1 / 3), rate=5.0)
    assert counts.mean() == pytest.approx(100, rel=0.02)
    assert counts.var(axis=0) == pytest.approx(np.full(3, 100), rel=0.15)
    assert np.corrcoef(counts.T)[0, 1] == pytest.approx(0, abs=0.1)


def test_topical_counts_of_one_topic_are_correlated():
    counts = substreams.topical_counts(1, topics=2, change=0.2, rate=10_000.0)
    steps = np.diff(np.log(np.maximum(counts, 1)), axis=0)
    correlation = np.corrcoef(steps.T)[np.triu_indices(100, 1)]
    assert (correlation > 0.3).mean() > 0.3
    alone = np.diff(np.log(np.maximum(substreams.topical_counts(1, topics=1000, change=0.2, rate=1e6), 1)), axis=0)
    assert (np.corrcoef(alone.T)[np.triu_indices(100, 1)] > 0.3).mean() < 0.1


def test_substream_problems_have_history_of_given_windows():
    counts = substreams.zipf_counts(1, windows=30)
    found = list(substreams.problems(counts, instances=5, memory=24))
    assert [len(problem.history) for problem in found] == [*range(1, 25), *[24] * 6]
    assert np.array_equal(found[-1].history, counts[-24:])
    assert found[-1].load == pytest.approx(counts[-1])
    assert found[-1].state_bytes == pytest.approx(counts[-1] / 10)
    assert set(found[0].current.tolist()) == set(range(5))
    assert not np.array_equal(found[0].current, next(substreams.problems(counts, instances=5, seed=1)).current)


def test_recorded_counts_count_each_row_once_in_substream_of_key(data_path):
    table = pq.read_table(data_path("wiki_edits/edits.parquet"), columns=["ts", "page"])
    counts = substreams.recorded_counts(table["ts"], table["page"], substreams=64, seconds=600.0)
    assert counts.sum() == len(table)
    moments = table["ts"].to_numpy().astype("datetime64[ms]").astype(np.int64)
    assert len(counts) == (moments.max() - moments.min()) // 600_000 + 1
    first = moments < moments.min() + 600_000
    assert counts[0].sum() == first.sum()
    # Rows of one key belong to one substream, whatever their order.
    turned = table.take(np.random.default_rng(0).permutation(len(table)))
    assert np.array_equal(counts, substreams.recorded_counts(turned["ts"], turned["page"], 64, 600.0))
    one = table.filter(pa.compute.equal(table["page"], table["page"][0]))
    assert (substreams.recorded_counts(one["ts"], one["page"], 64, 600.0).sum(axis=0) > 0).sum() == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: substreams.recorded_counts(pa.array([], pa.timestamp("s")), pa.array([], pa.string())), "0 moments"),
        (lambda: substreams.recorded_counts(pa.array([1], pa.timestamp("s")), pa.array(["a", "b"])), "2 keys"),
        (lambda: substreams.recorded_counts(pa.array([None], pa.timestamp("s")), pa.array(["a"])), "1 of them null"),
        (
            lambda: substreams.recorded_counts(pa.array([1], pa.timestamp("s")), pa.array(["a"]), seconds=0),
            "seconds 0",
        ),
        (lambda: substreams.poisson_counts(0, [[-1.0]]), "finite numbers"),
        (lambda: substreams.poisson_counts(0, [1.0]), r"shape \(1,\)"),
        (lambda: substreams.poisson_counts(0, [[1.0]], rate=-1), "rate is -1"),
        (lambda: substreams.topical_counts(0, topics=0), "topics is 0"),
        (lambda: next(substreams.problems([[1.0]], memory=0)), "memory is 0"),
        (lambda: next(substreams.problems([[1.0]], instances=0)), "instances is 0"),
        (lambda: next(substreams.problems([1.0])), r"shape \(1,\)"),
    ],
)
def test_substreams_with_invalid_arguments_raise_planning_error(call, message):
    with pytest.raises(PlanningError, match=message):
        call()

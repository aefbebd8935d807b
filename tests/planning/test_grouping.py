"""Groupings equal the published rules where exact, stay close where approximate, and balance as documented."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.placement.consistent_hash import ring
from dask_elastic.planning.placement.grouping import (
    PartialKeyGrouping,
    candidates,
    consistent_hash,
    expansion,
    universal_hash,
)
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.universal_hash import UniversalHash
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.vocab.errors import PlanningError


def zipf(rows, keys, exponent, seed=0):
    """Hashes of keys whose shares are as their ranks to the power of minus the exponent."""
    share = 1 / np.arange(1, keys + 1) ** exponent
    drawn = np.random.default_rng(seed).choice(keys, rows, p=share / share.sum())
    return hash_columns(pa.record_batch({"key": drawn}), ["key"])


def peak(target, instances):
    loads = np.bincount(target, minlength=instances)
    return loads.max() / loads.mean()


def by_the_letter(hashes, instances, choices, seed):
    """Send one tuple after the other to the less loaded of its candidates."""
    load = [0] * instances
    target = []
    for offered in candidates(hashes, instances, choices, seed).tolist():
        target.append(min(offered, key=lambda instance: (load[instance], offered.index(instance))))
        load[target[-1]] += 1
    return target


HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=60).map(lambda values: np.array(values, dtype=np.uint64))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=80), st.integers(1, 6), st.data())
def test_grouping_in_steps_of_one_equals_power_of_choices(keys, instances, data):
    choices = data.draw(st.integers(1, instances))
    seed = data.draw(st.integers(0, 3))
    hashes = np.array(keys, dtype=np.uint64)
    found = PartialKeyGrouping(instances, choices, step=1, seed=seed).route(hashes)
    assert found.tolist() == by_the_letter(hashes, instances, choices, seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(2, 12), st.floats(0, 2), st.integers(0, 5))
def test_load_difference_is_bounded_by_step_length(step, instances, exponent, seed):
    hashes = zipf(2000, 200, exponent, seed)
    one, many = (
        np.bincount(PartialKeyGrouping(instances, step=size, seed=seed).route(hashes), minlength=instances).max()
        for size in (1, step)
    )
    assert many <= one + 2 * step


@settings(max_examples=100, deadline=None)
@given(HASHES, st.integers(1, 9), st.integers(0, 5))
def test_candidates_are_different_and_the_first_ones_stay(hashes, instances, seed):
    all_of_them = candidates(hashes, instances, instances, seed)
    assert (np.sort(all_of_them, axis=1) == np.arange(instances)).all()
    for choices in range(1, instances):
        assert (candidates(hashes, instances, choices, seed) == all_of_them[:, :choices]).all()


def test_every_pair_of_candidates_is_as_likely():
    pairs = candidates(np.arange(60_000), 4, 2)
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16).reshape(4, 4)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(4, dtype=bool)]
    assert np.abs(off / 5000 - 1).max() < 0.06


@settings(max_examples=60, deadline=None)
@given(st.lists(HASHES, min_size=1, max_size=4), st.integers(2, 9), st.integers(0, 5))
def test_tuples_go_to_candidates_of_their_keys_and_are_counted(batches, instances, seed):
    grouping = PartialKeyGrouping(instances, 2, hot_choices=instances, hot_share=0.9, seed=seed)
    plain = PartialKeyGrouping(instances, 2, seed=seed)
    sent = []
    for hashes in batches:
        target = plain.route(hashes)
        offered = candidates(hashes, instances, 2, seed)
        assert (offered == target[:, None]).any(axis=1).all()
        sent += target.tolist()
        found = grouping.route(hashes)
        assert (found >= 0).all()
        assert len(found) == len(hashes)
    assert plain.load.tolist() == np.bincount(np.array(sent, dtype=int), minlength=instances).tolist()
    assert grouping.load.sum() == len(sent)


def test_more_choices_balance_more_skew_than_hashing():
    mild, strong = zipf(60_000, 5000, 0.9), zipf(60_000, 5000, 1.5)
    for hashing in (universal_hash, consistent_hash):
        assert peak(hashing(mild, 10), 10) > 1.2
    assert peak(PartialKeyGrouping(10).route(mild), 10) < 1.02
    # The first key has more than a third of all tuples: two of twenty instances cannot bear it, all of them can.
    assert peak(PartialKeyGrouping(20).route(strong), 20) > 3
    assert peak(PartialKeyGrouping(20, hot_choices=20).route(strong), 20) < 1.02
    assert peak(PartialKeyGrouping(20, hot_choices=6).route(strong), 20) < 2


def test_better_balance_spreads_state_over_more_instances():
    hashes = zipf(60_000, 5000, 1.2)
    two, hot = PartialKeyGrouping(20).route(hashes), PartialKeyGrouping(20, hot_choices=20).route(hashes)
    assert expansion(hashes, universal_hash(hashes, 20)) == 1
    assert expansion(hashes, consistent_hash(hashes, 20)) == 1
    assert 1 < expansion(hashes, two) <= 2
    for key in np.unique(hashes):
        assert len(set(two[hashes == key])) <= 2
    # Only keys of a twentieth of the load and more may go further.
    shares = np.unique(hashes, return_counts=True)
    spread = np.array([len(set(hot[hashes == key])) for key in shares[0]])
    hot_keys = shares[1] >= len(hashes) / 20
    assert hot_keys.any()
    assert (spread[hot_keys] > 10).all()
    assert (spread[~hot_keys] <= 2).all()


def test_hot_keys_are_found_over_many_batches_with_few_counters():
    random = np.random.default_rng(1)
    grouping = PartialKeyGrouping(10, hot_choices=10, hot_share=0.2)
    target, sent = [], []
    for _ in range(60):
        # Half of the tuples are of one key, all others of keys that are seen once.
        hashes = np.where(random.random(500) < 0.5, np.uint64(7), random.integers(0, 2**63, 500).astype(np.uint64))
        target.append(grouping.route(hashes))
        sent.append(hashes)
    hot = np.concatenate(sent) == 7
    assert len(set(np.concatenate(target)[hot])) == 10
    assert len(grouping._heavy._key) <= 50
    assert peak(np.concatenate(target), 10) < 1.05


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.sampled_from([0.1, 0.25, 1.0]), st.sampled_from([0.5, 1.5, 3.0]))
def test_key_is_hot_only_above_the_share(seed, share, exponent):
    # More keys than counters, many of them seen several times.
    grouping = PartialKeyGrouping(3, 1, hot_choices=3, hot_share=share)
    hashes = zipf(1500, 400, exponent, seed)
    for end in range(300, 1501, 300):
        grouping.route(hashes[end - 300 : end])
        assert len(grouping._heavy._key) <= 10 / share
        keys, counts = np.unique(hashes[:end], return_counts=True)
        hot = grouping._heavy.among(keys)
        assert (counts[hot] >= share * end).all()
        assert hot[counts >= 1.1 * share * end].all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 120), st.integers(0, 5))
def test_the_ring_is_that_of_the_planner(instances, replicas, seed):
    problem = PlacementProblem(np.ones(50), np.zeros(50, dtype=int), instances)
    assert (consistent_hash(np.arange(50), instances, replicas, seed) == ring(problem, replicas, seed)).all()


@settings(max_examples=40, deadline=None)
@given(HASHES, st.integers(1, 9), st.integers(0, 5))
def test_added_instance_takes_keys_without_moving_others(hashes, instances, seed):
    fewer, more = (consistent_hash(hashes, count, seed=seed) for count in (instances, instances + 1))
    assert ((fewer == more) | (more == instances)).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 50))
def test_the_universal_function_is_that_of_the_planner(instances, seed):
    # All groups on one bin: any function that spreads them is better, so the planner takes the one it drew.
    problem = PlacementProblem(np.ones(200), np.zeros(200, dtype=int), instances)
    planned = UniversalHash().plan(problem, seed=seed).bin
    assert (universal_hash(np.arange(200), instances, seed, substreams=200) == planned).all()


def test_universal_hash_collisions_are_within_the_bound():
    meetings = [len(set(universal_hash([12, 77], 8, seed).tolist())) == 1 for seed in range(2000)]
    assert np.mean(meetings) < 1 / 8 + 0.03


def test_keys_of_one_substream_stay_together():
    hashes = np.arange(1000, dtype=np.uint64)
    target = universal_hash(hashes, 7, seed=1, substreams=10)
    assert all(len(set(target[hashes % 10 == substream])) == 1 for substream in range(10))


def test_one_key_has_one_instance_whatever_else_is_in_the_batch():
    hashes = zipf(1000, 50, 1.0)
    for hashing in (universal_hash, consistent_hash):
        alone = np.array([hashing([one], 7, seed=3)[0] for one in hashes[:50]])
        assert (hashing(hashes, 7, seed=3)[:50] == alone).all()


def test_no_tuple_is_routed_for_an_empty_batch():
    assert [len(route([], 3)) for route in (universal_hash, consistent_hash)] == [0, 0]
    assert len(PartialKeyGrouping(3, hot_choices=3).route([])) == 0
    assert expansion([], []) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: universal_hash([1], 0), "instances is 0"),
        (lambda: universal_hash([1], 2, substreams=2**31), r"substreams is 2147483648: give 2147483647 at most"),
        (lambda: universal_hash([0.5], 2), "type float64"),
        (lambda: consistent_hash([[1]], 2), r"shape \(1, 1\)"),
        (lambda: consistent_hash([1], 2, replicas=0), "replicas is 0"),
        (lambda: consistent_hash([1], 1.5), r"instances is 1\.5"),
        (lambda: candidates([1], 2, 3), "choices is 3: give 2 at most"),
        (lambda: PartialKeyGrouping(1), "choices is 2: give 1 at most"),
        (lambda: PartialKeyGrouping(4, hot_choices=1), "hot_choices is 1"),
        (lambda: PartialKeyGrouping(4, hot_choices=5), "hot_choices is 5"),
        (lambda: PartialKeyGrouping(4, hot_share=0), "hot_share is 0"),
        (lambda: PartialKeyGrouping(4, hot_share=float("nan")), "hot_share is nan"),
        (lambda: PartialKeyGrouping(4, step=0), "step is 0"),
        (lambda: PartialKeyGrouping(4).route(["a"]), "hashes has shape"),
        (lambda: expansion([1, 2], [0]), r"target has shape \(1,\), hashes \(2,\)"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(PlanningError, match=message):
        call()

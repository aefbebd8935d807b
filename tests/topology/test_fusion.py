"""Fusion yields compatible, acyclic components, and matches the printed algorithm if cycles are allowed."""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.papers.random_jobs import random_job
from dask_elastic.topology.fusion import ALL, SCORES, communication, cycle, fuse
from dask_elastic.vocab.errors import TopologyError

AREA = {"a": {"area"}, "b": {"area"}, "c": {"area"}}


@st.composite
def jobs(draw, most=7, acyclic=True):
    """Draw small jobs: operators 0, 1, … with some, all or none of four attributes."""
    count = draw(st.integers(1, most))
    sets = st.one_of(st.just(ALL), st.sets(st.sampled_from("wxyz")).map(frozenset))
    attributes = dict(enumerate(draw(st.lists(sets, min_size=count, max_size=count))))
    pairs = [
        (source, target)
        for source in range(count)
        for target in range(count)
        if source < target or (not acyclic and source > target)
    ]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    rates = {pair: draw(st.one_of(st.integers(0, 5), st.floats(0, 100))) for pair in chosen}
    return attributes, rates


def shared(component, attributes):
    """Return the attributes that the operators of a component share; ALL if all accept any partitioning."""
    sets = [set(attributes[name]) for name in component if attributes[name] is not ALL]
    return reduce(set.intersection, sets) if sets else ALL


def compatible(component, attributes):
    return len(component) == 1 or shared(component, attributes) is ALL or bool(shared(component, attributes))


def literal(attributes, rates, score, allow_cycles):
    """Run Algorithm 1 as printed, with a check of the whole graph if cycles are forbidden."""

    def intersect(first, second):
        if first is ALL:
            return second
        return first if second is ALL else first & second

    def size(attributes_left):
        return 99 if attributes_left is ALL else len(attributes_left)

    fused = {name: {name} for name in attributes}
    while True:
        best = 0
        for i in attributes:
            for j in [target for source, target in rates if source == i]:
                if j in fused[i]:
                    continue
                source = reduce(intersect, (attributes[name] for name in fused[i]))
                target = reduce(intersect, (attributes[name] for name in fused[j]))
                if size(intersect(source, target)) == 0:
                    continue
                found = rates[i, j] if score == "communication" else size(intersect(attributes[i], attributes[j]))
                if found <= best:
                    continue
                union = fused[i] | fused[j]
                others = {frozenset(members) for members in fused.values() if not members & union}
                if allow_cycles or cycle([*others, frozenset(union)], rates) is None:
                    best, chosen = found, union
        if best == 0:
            return {frozenset(members) for members in fused.values()}
        fused |= dict.fromkeys(chosen, chosen)


@settings(max_examples=150, deadline=None)
@given(jobs(), st.sampled_from(SCORES), st.integers(0, 3))
def test_fuse_partitions_into_compatible_acyclic_components(job, score, seed):
    attributes, rates = job
    components = fuse(attributes, rates, score, seed=seed)
    assert sorted(itertools.chain(*components)) == list(attributes)
    assert all(compatible(component, attributes) for component in components)
    assert cycle(components, rates) is None
    assert [min(component) for component in components] == sorted(min(component) for component in components)


@settings(max_examples=150, deadline=None)
@given(jobs(), st.sampled_from(["communication", "attributes"]))
def test_fuse_leaves_no_pair_that_could_be_fused(job, score):
    attributes, rates = job
    components = fuse(attributes, rates, score)
    for first, second in itertools.combinations(components, 2):
        pairs = [pair for pair in rates if len(first & set(pair)) == len(second & set(pair)) == 1]
        if score == "communication":
            pairs = [pair for pair in pairs if rates[pair] > 0]
        joined = [one for one in components if one not in (first, second)] + [first | second]
        assert not pairs or not compatible(first | second, attributes) or cycle(joined, rates) is not None


@settings(max_examples=150, deadline=None)
@given(jobs(acyclic=False), st.sampled_from(["communication", "attributes"]))
def test_fuse_with_cycles_allowed_matches_the_printed_algorithm(job, score):
    attributes, rates = job
    assert set(fuse(attributes, rates, score, allow_cycles=True)) == literal(attributes, rates, score, True)


@settings(max_examples=150, deadline=None)
@given(jobs(most=9), st.sampled_from(["communication", "attributes"]))
def test_fuse_without_cycles_makes_the_best_acyclic_fusion_next(job, score):
    attributes, rates = job
    assert set(fuse(attributes, rates, score)) == literal(attributes, rates, score, False)


@pytest.mark.parametrize("allow_cycles", [False, True])
@pytest.mark.parametrize("score", ["communication", "attributes"])
def test_fuse_matches_the_algorithm_on_larger_jobs(score, allow_cycles):
    for seed in range(3):
        job = random_job(30, seed)
        found = fuse(job.attributes, job.rates, score, allow_cycles)
        assert set(found) == literal(job.attributes, job.rates, score, allow_cycles)


@pytest.mark.parametrize("score", ["communication", "attributes"])
def test_fuse_matches_the_algorithm_on_jobs_whose_edges_skip_levels(score):
    for seed in range(60):
        random = np.random.default_rng(seed)
        attributes = {name: {"vwxyz"[place] for place in random.integers(0, 5, 2)} for name in range(16)}
        pairs = [pair for pair in itertools.combinations(range(16), 2) if random.random() < 0.2]
        rates = dict(zip(pairs, random.integers(1, 50, len(pairs)).tolist(), strict=True))
        assert set(fuse(attributes, rates, score)) == literal(attributes, rates, score, False)


def test_fuse_detects_a_detour_made_by_another_fusion():
    # After a and b are fused, y leads to z through them, so fusing w and z would make a cycle with y.
    attributes = {"a": {1}, "b": {1}, "w": {2}, "z": {2}, "y": {3}}
    rates = {("a", "b"): 9, ("w", "z"): 5, ("w", "y"): 1, ("y", "b"): 1, ("a", "z"): 1}
    assert fuse(attributes, rates) == [frozenset("ab"), frozenset("w"), frozenset("z"), frozenset("y")]


def test_fuse_detects_a_detour_made_by_two_fusions():
    # After y and p are fused too, r leads to z through them, so fusing w and z would make a cycle with r.
    attributes = {"a": {1}, "b": {1}, "y": {3}, "p": {3}, "w": {2}, "z": {2}, "r": {4}}
    rates = {("a", "b"): 9, ("y", "p"): 8, ("w", "z"): 5}
    rates |= dict.fromkeys([("y", "b"), ("a", "z"), ("r", "p"), ("w", "r")], 1)
    assert fuse(attributes, rates) == [*map(frozenset, ("ab", "yp", "w", "z", "r"))]


@pytest.mark.parametrize("score", SCORES)
def test_fuse_makes_no_cycle_on_large_jobs(score):
    for seed in range(10):
        job = random_job(100, seed)
        components = fuse(job.attributes, job.rates, score, seed=seed)
        assert sorted(itertools.chain(*components)) == sorted(job.attributes)
        assert all(compatible(component, job.attributes) for component in components)
        assert cycle(components, job.rates) is None


@settings(max_examples=200, deadline=None)
@given(jobs(most=5))
def test_communication_of_fusion_is_between_the_optimum_and_no_fusion(job):
    attributes, rates = job
    found = communication(fuse(attributes, rates), rates)
    alone = communication([frozenset([name]) for name in attributes], rates)
    best = min(
        communication(components, rates)
        for components in partitions(list(attributes))
        if all(compatible(component, attributes) for component in components) and cycle(components, rates) is None
    )
    assert best - 1e-12 <= found <= alone


def partitions(names):
    """Yield every partition of the names."""
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [frozenset(names[:1]), *rest]
        for place, part in enumerate(rest):
            yield [*rest[:place], part | {names[0]}, *rest[place + 1 :]]


def test_fuse_defers_a_fusion_until_its_detour_is_fused():
    attributes = {"a": {"x", "y"}, "b": {"y"}, "c": {"x", "y"}}
    rates = {("a", "c"): 9, ("a", "b"): 5, ("b", "c"): 1}
    # The edge with the highest rate can be fused only after b, which lies between its ends, is fused with a.
    assert fuse(attributes, rates) == [frozenset("abc")]
    attributes["b"] = {"z"}
    assert fuse(attributes, rates) == [frozenset("a"), frozenset("b"), frozenset("c")]
    assert fuse(attributes, rates, allow_cycles=True) == [frozenset("ac"), frozenset("b")]
    assert cycle([frozenset("ac"), frozenset("b")], rates) == [frozenset("ac"), frozenset("b")]


def test_fuse_starts_with_the_best_score():
    attributes = {"a": {"x"}, "b": {"x", "y", "z"}, "c": {"y", "z"}}
    rates = {("a", "b"): 9, ("b", "c"): 1}
    assert fuse(attributes, rates) == [frozenset("ab"), frozenset("c")]
    assert fuse(attributes, rates, "attributes") == [frozenset("a"), frozenset("bc")]
    # The baseline starts at the first operator, whatever the scores of others.
    assert fuse(attributes, rates, "baseline") == [frozenset("ab"), frozenset("c")]


def test_baseline_fuses_the_most_shared_attributes_first():
    attributes = {"a": {"x", "y", "z"}, "b": {"x"}, "c": {"y", "z"}}
    rates = {("a", "b"): 9, ("a", "c"): 1}
    assert fuse(attributes, rates, "baseline") == [frozenset("ac"), frozenset("b")]


def test_seed_affects_the_baseline_only():
    job = random_job(60, seed=1)
    baselines = {tuple(fuse(job.attributes, job.rates, "baseline", seed=seed)) for seed in range(4)}
    assert len(baselines) > 1
    assert fuse(job.attributes, job.rates, "baseline", seed=2) == fuse(job.attributes, job.rates, "baseline", seed=2)
    for score in ("communication", "attributes"):
        assert fuse(job.attributes, job.rates, score, seed=0) == fuse(job.attributes, job.rates, score, seed=9)


def test_operator_with_all_attributes_fuses_with_any_parallel_operator():
    rates = {("a", "b"): 1, ("b", "c"): 1, ("c", "d"): 1}
    attributes = {"a": ALL, "b": ALL, "c": ["area"], "d": set()}
    for score in SCORES:
        assert fuse(attributes, rates, score) == [frozenset("abc"), frozenset("d")]
    assert fuse({"a": ALL, "b": ALL}, {("a", "b"): 1}, "attributes") == [frozenset("ab")]
    assert repr(ALL) == "ALL"


def test_operators_without_attributes_are_not_fused():
    assert len(fuse({"a": set(), "b": set()}, {("a", "b"): 1})) == 2


def test_edge_with_rate_zero_counts_for_cycles():
    rates = {("a", "c"): 9, ("a", "b"): 0, ("b", "c"): 0}
    assert len(fuse(AREA, rates)) == 3
    assert len(fuse(AREA, rates, "attributes")) == 1


def test_fuse_of_no_operators_is_empty():
    assert [fuse({}, {}, score) for score in SCORES] == [[], [], []]
    assert communication([], {}) == 0.0


def test_fuse_refuses_a_cyclic_job():
    rates = {("a", "b"): 1, ("b", "c"): 1, ("c", "b"): 1}
    with pytest.raises(TopologyError, match="cycle, 'b' -> 'c' -> 'b'"):
        fuse(AREA, rates)
    assert fuse(AREA, rates, allow_cycles=True) == [frozenset("abc")]


def test_cycle_follows_the_direction_of_the_tuples():
    rates = {("a", "b"): 1, ("b", "c"): 1, ("c", "a"): 1}
    assert cycle([frozenset(name) for name in "abc"], rates) == [frozenset(name) for name in "abc"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fuse(AREA, {}, "comunication"), "'comunication'; did you mean 'communication'"),
        (lambda: fuse(AREA, {}, "x"), "choose one of communication, attributes, baseline"),
        (
            lambda: fuse({"orders": {"x"}}, {("orders", "order"): 1}),
            "names 'order', which is not an operator; did you mean",
        ),
        (lambda: fuse(AREA, {("a", "b"): -1.0}), r"rate of \('a', 'b'\) is -1\.0"),
        (lambda: fuse(AREA, {("a", "b"): float("nan")}), r"rate of \('a', 'b'\) is nan"),
        (lambda: fuse(AREA, {("a", "b"): float("inf")}), r"rate of \('a', 'b'\) is inf"),
        (lambda: fuse({"a": "area"}, {}), "attributes of 'a' are 'area'"),
        (lambda: fuse({"a": None}, {}), "attributes of 'a' are None"),
        (lambda: communication([frozenset("a")], {("a", "b"): 1}), "names 'b'"),
        (lambda: cycle([frozenset("ab")], {("a", "b"): float("nan")}), "is nan"),
    ],
)
def test_fusion_with_bad_input_raises_topology_error(call, message):
    with pytest.raises(TopologyError, match=message):
        call()


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 80), st.integers(0, 1000))
def test_random_jobs_have_the_properties_of_the_paper(operators, seed):
    job = random_job(operators, seed)
    assert len(job.attributes) == sum(map(len, job.levels)) == operators
    assert 3 <= len(job.levels) <= 0.75 * operators
    level = {name: number for number, names in enumerate(job.levels) for name in names}
    assert all(level[target] == level[source] + 1 for source, target in job.rates)
    assert len(job.rates) == sum(len(one) * len(next_one) for one, next_one in itertools.pairwise(job.levels))
    for source in job.attributes:
        assert sum(rate for pair, rate in job.rates.items() if pair[0] == source) <= 1000
    sizes = [len(chosen) for chosen in job.attributes.values()]
    assert sizes[0] == 15
    assert all(abs(one - two) <= 3 and 1 <= two <= 30 for one, two in itertools.pairwise(sizes))
    assert job == random_job(operators, seed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_job(3, 0), "operators is 3"),
        (lambda: random_job(9, 0, attributes=0), "attributes is 0"),
        (lambda: random_job(9, 0, change=-1), "change is -1"),
        (lambda: random_job(9, 0, rate=float("nan")), "rate is nan"),
    ],
)
def test_random_job_with_bad_arguments_is_refused(call, message):
    with pytest.raises(TopologyError, match=message):
        call()

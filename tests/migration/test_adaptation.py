"""Migrate, RePartition and their composites, against the definitions of Enorm, sections 4.5 and 5."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.migration.adaptation import (
    Migrate,
    ModelComponent,
    ModelOperator,
    RePartition,
    adapted,
    allocated,
    categories,
    combined,
    split,
)
from dask_elastic.vocab.errors import PlanningError

SUM = ModelOperator("sum", "compute", frozenset("abc"), windowed=True)
ALL = ModelOperator("all", "consolidate", frozenset("ab"))
TOP = ModelOperator("top", "map", frozenset("a"))
JOB = {"C1": ModelComponent((SUM, ALL), (1, 1, 2, 2)), "C2": ModelComponent((TOP,), (3,))}


def test_migrate_changes_operators_and_partition_attributes():
    after = Migrate("all", "C1", "C2").apply(JOB)
    assert after["C1"].operators == (SUM,)
    assert after["C2"].operators == (ALL, TOP)
    assert after["C2"].attributes == JOB["C2"].attributes & ALL.attributes
    assert after["C1"].attributes == SUM.attributes
    assert JOB["C1"].operators == (SUM, ALL)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Migrate("nothing", "C1", "C2"), "'C1' has no operator 'nothing'"),
        (Migrate("top", "C2", "C1"), "'top' is all of 'C2'"),
        (Migrate("all", "C1", "C3"), "no component 'C3'"),
        (RePartition("C1", frozenset({1}), frozenset({2})), r"on the nodes \[1, 2\]"),
        (RePartition("C1", frozenset({1, 2}), frozenset()), "at least one node"),
    ],
)
def test_operations_that_cannot_be_applied_are_refused(operation, reason):
    with pytest.raises(PlanningError, match=reason):
        operation.apply(JOB)


def test_operator_without_a_common_attribute_is_refused():
    job = JOB | {"C2": ModelComponent((ModelOperator("top", "map", frozenset("z")),))}
    with pytest.raises(PlanningError, match="together they could not be partitioned"):
        Migrate("all", "C1", "C2").apply(job)


def test_allocating_a_node_migrates_then_repartitions():
    operations = allocated(JOB, 9, "C1", "all", "C2")
    assert operations == (
        Migrate("all", "C1", "C2"),
        RePartition("C1", frozenset({1, 2}), frozenset({1, 2, 9})),
    )
    assert adapted(JOB, operations)["C1"].nodes == {1, 2, 9}


def test_split_makes_a_component_flexible_and_combine_reverts_it():
    after = adapted(JOB, split(JOB, "C1", "C2"))
    assert not JOB["C1"].flexible
    assert after["C1"].flexible
    assert adapted(after, combined(after, "C1", "C2")) == JOB


def test_categories_are_those_of_the_paper():
    after = adapted(JOB, split(JOB, "C1", "C2"))
    assert categories(JOB["C1"], [JOB["C2"]]) == ("disruptive", "smooth")
    assert categories(after["C1"], [after["C2"]]) == ("instant", "disruptive", "smooth")
    assert categories(after["C2"]) == ("instant",)
    assert categories(JOB["C2"]) == ("instant",)
    plain = ModelComponent((ModelOperator("count", "compute", frozenset("a")),))
    assert categories(plain) == ("disruptive",)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.frozensets(st.integers(0, 8), min_size=1, max_size=6))
def test_repartition_is_even_and_moves_as_little_as_possible(placed, nodes):
    job = {"C": ModelComponent((SUM,), tuple(placed))}
    after = RePartition("C", frozenset(placed), nodes).apply(job)["C"].placed
    counts = Counter(after)
    share, more = divmod(len(placed), len(nodes))
    assert set(after) <= nodes
    assert all(counts[node] in (share, share + 1) for node in nodes)
    moved = sum(one != two for one, two in zip(placed, after, strict=True))
    before = sorted((Counter(node for node in placed if node in nodes)[node] for node in nodes), reverse=True)
    stay = sum(min(count, share + (place < more)) for place, count in enumerate(before))
    assert moved == len(placed) - stay

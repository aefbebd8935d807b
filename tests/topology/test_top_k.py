from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic import aggregate as agg
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

GROUPS = 4
NUMBERS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([10**15, -(10**15)]))
FLOATS = st.one_of(st.none(), st.floats(width=32), st.sampled_from([0.0, -0.0, 1.5]))
LABELS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "dd", ""]))
FAST = settings(max_examples=100, deadline=None)


def bound(aggregate, **columns):
    return aggregate.bind(pa.schema(columns))


def rows_of(groups, **columns):
    arrays = {name: pa.array(values, kind) for name, (values, kind) in columns.items()}
    return pa.record_batch(arrays), Grouping(np.array(groups, np.intp), GROUPS)


def updated(aggregate, batches, start=None):
    state = aggregate.initial(GROUPS) if start is None else start
    for rows, grouping in batches:
        state = aggregate.update(state, rows, grouping)
    return state


def expected(batches, k, label=False):
    frame = pd.concat([rows.to_pandas().assign(group=grouping.ordinals) for rows, grouping in batches])
    kept = frame.dropna()
    order = kept.sort_values(["n", "who"], ascending=[False, True]) if label else kept.sort_values("n", ascending=False)
    best = {}
    for group in range(GROUPS):
        own = order[order["group"] == group].head(k)
        best[group] = own[["n", "who"]].to_dict("records") if label else own["n"].tolist()
    return [best[group] for group in range(GROUPS)]


@st.composite
def batches_of(draw, values, kind, label=False):
    made = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 8))
        columns = {"n": (draw(st.lists(values, min_size=size, max_size=size)), kind)}
        if label:
            columns["who"] = draw(st.lists(LABELS, min_size=size, max_size=size)), pa.string()
        groups = draw(st.lists(st.integers(0, GROUPS - 1), min_size=size, max_size=size))
        made.append(rows_of(groups, **columns))
    return made


@FAST
@given(batches_of(NUMBERS, pa.int64()), st.integers(1, 4))
def test_top_k_of_integers_matches_pandas(batches, k):
    aggregate = bound(agg.TopK("n", k), n=pa.int64())
    assert aggregate.result(updated(aggregate, batches)).to_pylist() == expected(batches, k)


@FAST
@given(batches_of(FLOATS, pa.float64()), st.integers(1, 4))
def test_top_k_of_floats_matches_pandas(batches, k):
    aggregate = bound(agg.TopK("n", k), n=pa.float64())
    assert aggregate.result(updated(aggregate, batches)).to_pylist() == expected(batches, k)


@FAST
@given(batches_of(NUMBERS, pa.int64(), label=True), st.integers(1, 4))
def test_top_k_with_labels_matches_pandas(batches, k):
    aggregate = bound(agg.TopK("n", k, label="who"), n=pa.int64(), who=pa.string())
    assert aggregate.result(updated(aggregate, batches)).to_pylist() == expected(batches, k, label=True)


@FAST
@given(*[batches_of(NUMBERS, pa.int64(), label=True)] * 3, st.integers(1, 3), st.booleans())
def test_merge_is_associative_commutative_and_equals_the_whole(first, second, third, k, label):
    schema = {"n": pa.int64(), "who": pa.string()}
    aggregate = bound(agg.TopK("n", k, label="who" if label else None), **schema)
    a, b, c = (updated(aggregate, batches) for batches in (first, second, third))

    def as_lists(state):
        return [part.to_lists() for part in state]

    merged = aggregate.merge(aggregate.merge(a, b), c)
    assert as_lists(merged) == as_lists(aggregate.merge(a, aggregate.merge(b, c)))
    assert as_lists(aggregate.merge(a, b)) == as_lists(aggregate.merge(b, a))
    assert as_lists(merged) == as_lists(updated(aggregate, [*first, *second, *third]))
    assert as_lists(merged) == as_lists(updated(aggregate, [*third, *first, *second]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False, True]),
        (pa.uint64(), [2**64 - 1, 0, 5]),
        (pa.date32(), pd.to_datetime(["2013-01-03", "2013-01-01", "2013-01-02"]).date.tolist()),
        (pa.timestamp("us", "UTC"), pd.to_datetime(["2013-01-03", "2013-01-01"], utc=True).to_pydatetime().tolist()),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-2.25")]),
        (pa.float32(), [1.5, float("inf"), float("-inf")]),
    ],
)
def test_top_k_values_keep_their_type(kind, values):
    aggregate = bound(agg.TopK("n", 2), n=kind)
    state = updated(aggregate, [rows_of([0] * len(values), n=(values, kind))])
    result = aggregate.result(state)
    assert result.type == pa.list_(kind) == aggregate.type
    assert result.to_pylist() == [sorted(values, reverse=True)[:2], [], [], []]


@pytest.mark.parametrize(("kind", "labels"), [(pa.int32(), [9, 3, 5]), (pa.binary(), [b"z", b"a", b"k"])])
def test_top_k_labels_keep_their_type(kind, labels):
    aggregate = bound(agg.TopK("n", 2, label="who"), n=pa.int64(), who=kind)
    state = updated(aggregate, [rows_of([1] * 3, n=([5, 5, 5], pa.int64()), who=(labels, kind))])
    assert aggregate.result(state).type == pa.list_(pa.struct({"n": pa.int64(), "who": kind})) == aggregate.type
    assert [entry["who"] for entry in aggregate.result(state)[1].as_py()] == sorted(labels)[:2]


def test_top_k_update_without_new_values_returns_the_same_state():
    aggregate = bound(agg.TopK("n", 2), n=pa.int64())
    state = updated(aggregate, [rows_of([0, 0, 0], n=([5, 9, 7], pa.int64()))])
    assert aggregate.update(state, *rows_of([0, 0], n=([7, 2], pa.int64())))[0] is state[0]
    assert aggregate.update(state, *rows_of([0, 0], n=([None, None], pa.int64())))[0] is state[0]


def test_top_k_ranks_a_function():
    aggregate = bound(agg.TopK(lambda batch: batch["n"], 1, label="who", columns=["n"]), n=pa.int64(), who=pa.string())
    state = updated(aggregate, [rows_of([2, 2], n=([1, 2], pa.int64()), who=(["a", "b"], pa.string()))])
    assert aggregate.result(state)[2].as_py() == [{"value": 2, "who": "b"}]


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
def test_top_k_refuses_k_that_is_not_a_positive_integer(k):
    with pytest.raises(TopologyError, match="give an integer, 1 or more"):
        agg.TopK("n", k)


def test_top_k_refuses_unsupported_arguments():
    with pytest.raises(TopologyError, match="values of type list<item: bool> are not supp"):
        bound(agg.TopK("n", 2), n=pa.list_(pa.bool_()))
    with pytest.raises(TopologyError, match="labels of type list<item: int64> are not supported"):
        bound(agg.TopK("n", 2, label="who"), n=pa.int64(), who=pa.list_(pa.int64()))
    with pytest.raises(SchemaMismatch, match="reads column 'who'"):
        bound(agg.TopK("n", 2, label="who"), n=pa.int64())
    with pytest.raises(TopologyError, match="give the name of another column"):
        agg.TopK("n", 2, label="n")
    assert agg.TopK("n", 2, label="who").columns == ("n", "who")

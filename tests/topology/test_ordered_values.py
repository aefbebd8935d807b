from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic import aggregate as agg
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.ordered_values import prefixes
from dask_elastic.vocab.errors import TopologyError

GROUPS = 4
TEXT = st.sampled_from(
    ["", "a", "ab", "b", "Z", "ß", "\uffff", "\U0001f600", "longer than others", "longer th", "longer t", "a\0", "\0"]
)
LONG = pa.decimal128(30, 2)
FAST = settings(max_examples=60, deadline=None)

KINDS = {
    "string": (pa.string(), ["b", "", "ab"]),
    "large string": (pa.large_string(), ["b", "", "ab"]),
    "string view": (pa.string_view(), ["b", "", "a string of more than twelve bytes"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", "", "b"]),
    "binary": (pa.binary(), [b"b", b"", b"\xff"]),
    "large binary": (pa.large_binary(), [b"b", b"", b"\xff"]),
    "fixed size binary": (pa.binary(2), [b"ab", b"aa", b"\xff\x00"]),
    "long decimal": (LONG, [Decimal("-1.50"), Decimal("12345678901234567890.25"), Decimal("2.00")]),
    "decimal256": (pa.decimal256(60, 1), [Decimal("-1.5"), Decimal(10) ** 50, Decimal("2.0")]),
    "date32": (pa.date32(), [dt.date(2013, 1, 2), dt.date(1969, 1, 1), dt.date(2013, 1, 1)]),
    "date64": (pa.date64(), [dt.date(2013, 1, 2), dt.date(1969, 1, 1), dt.date(2013, 1, 1)]),
    "time32": (pa.time32("s"), [dt.time(3), dt.time(0), dt.time(23, 59)]),
    "time64": (pa.time64("us"), [dt.time(3), dt.time(0), dt.time(23, 59)]),
    "duration": (pa.duration("s"), [dt.timedelta(1), dt.timedelta(-1), dt.timedelta(0)]),
    "short decimal": (pa.decimal128(5, 2), [Decimal("-1.50"), Decimal("2.25"), Decimal("0.00")]),
}


def bound(aggregate, **columns):
    return aggregate.bind(pa.schema(columns))


@st.composite
def text_batches(draw):
    """Draw batches of the columns `v` and `who`, each with the groups of its rows."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 8))
        columns = {
            name: pa.array(draw(st.lists(st.one_of(st.none(), TEXT), min_size=size, max_size=size)), pa.string())
            for name in ("v", "who")
        }
        groups = draw(st.lists(st.integers(0, GROUPS - 1), min_size=size, max_size=size))
        made.append((pa.record_batch(columns), Grouping(np.array(groups, np.intp), GROUPS)))
    return made


def updated(aggregate, batches):
    state = aggregate.initial(GROUPS)
    for rows, grouping in batches:
        state = aggregate.update(state, rows, grouping)
    return state


def frame_of(batches):
    frames = [rows.to_pandas().assign(group=grouping.ordinals) for rows, grouping in batches]
    return pd.concat(frames, ignore_index=True).astype({"v": object, "who": object})


def tops(batches, k, label):
    """Return the greatest values of each group, by pandas."""
    frame = frame_of(batches).dropna(subset=["v", "who"] if label else ["v"])
    by, ascending = (["v", "who"], [False, True]) if label else (["v"], [False])
    ordered = frame.sort_values(by, ascending=ascending, kind="stable")
    heads = [ordered[ordered["group"] == group].head(k) for group in range(GROUPS)]
    return [head[["v", "who"]].to_dict("records") if label else head["v"].tolist() for head in heads]


@FAST
@given(text_batches())
def test_extremes_of_text_match_arrow(batches):
    frame = frame_of(batches).dropna(subset=["v"])
    table = pa.table({"group": pa.array(frame["group"], pa.int64()), "v": pa.array(frame["v"], pa.string())})
    grouped = table.group_by("group").aggregate([("v", "min"), ("v", "max")]).to_pydict()
    for name, aggregate in (("v_min", agg.Min("v")), ("v_max", agg.Max("v"))):
        found = dict(zip(grouped["group"], grouped[name], strict=True))
        whole = bound(aggregate, v=pa.string())
        result = whole.result(updated(whole, batches))
        assert result.type == pa.string()
        assert result.to_pylist() == [found.get(group) for group in range(GROUPS)]


@FAST
@given(text_batches(), text_batches())
def test_merged_extremes_of_text_equal_the_whole(first, second):
    for aggregate in (agg.Min("v"), agg.Max("v")):
        whole = bound(aggregate, v=pa.string())
        parts = updated(whole, first), updated(whole, second)
        before = [part[0].tolist() for part in parts]
        expected = updated(whole, [*first, *second])[0].tolist()
        assert whole.merge(*parts)[0].tolist() == whole.merge(*parts[::-1])[0].tolist() == expected
        assert [part[0].tolist() for part in parts] == before


@FAST
@given(text_batches(), st.integers(1, 3), st.booleans())
def test_top_k_of_text_matches_pandas(batches, k, label):
    aggregate = bound(agg.TopK("v", k, label="who" if label else None), v=pa.string(), who=pa.string())
    assert aggregate.result(updated(aggregate, batches)).to_pylist() == tops(batches, k, label)


@FAST
@given(text_batches(), text_batches(), st.integers(1, 3), st.booleans())
def test_merged_top_k_of_text_equals_the_whole(first, second, k, label):
    aggregate = bound(agg.TopK("v", k, label="who" if label else None), v=pa.string(), who=pa.string())
    parts = updated(aggregate, first), updated(aggregate, second)
    expected = aggregate.result(updated(aggregate, [*second, *first]))
    assert aggregate.result(aggregate.merge(*parts)) == aggregate.result(aggregate.merge(*parts[::-1])) == expected


@FAST
@given(
    st.lists(st.one_of(TEXT, st.text(max_size=12)), min_size=2, max_size=8),
    st.sampled_from([pa.string(), pa.large_binary()]),
)
def test_prefixes_never_contradict_the_order_of_texts(texts, kind):
    array = pa.array([None, *(text.encode() for text in texts)], kind).slice(1)
    found, plain = prefixes(array), [text.encode() for text in texts]
    for one, first in zip(found, plain, strict=True):
        for other, second in zip(found, plain, strict=True):
            assert first[:8] == second[:8] or (one < other) == (first.ljust(8, b"\0")[:8] < second.ljust(8, b"\0")[:8])
            assert first >= second or one <= other


@pytest.mark.parametrize("name", KINDS)
def test_ordered_values_of_any_type_are_compared(name):
    kind, values = KINDS[name]
    rows = pa.record_batch({"v": pa.array([None, *values], kind), "n": [1, 1, 1, 1]})
    parts = [(rows.slice(0, 2), Grouping(np.array([0, 1]), 2))]
    parts += [(pa.concat_batches([rows.slice(0, 1), rows.slice(2)]), Grouping(np.array([0, 1, 1]), 2))]
    first, last = min(values), max(values)
    for aggregate, expected in (
        (agg.Min("v"), [None, first]),
        (agg.Max("v"), [None, last]),
        (agg.TopK("v", 1), [[], [last]]),
        (agg.TopK("n", 1, label="v"), [[], [{"n": 1, "v": first}]]),
    ):
        whole = bound(aggregate, v=kind, n=pa.int64())
        after = whole.update(whole.update(whole.initial(2), *parts[0]), *parts[1])
        merged = whole.merge(*(whole.update(whole.initial(2), *part) for part in parts))
        assert whole.result(after).type == whole.type
        assert whole.result(after).to_pylist() == whole.result(merged).to_pylist() == expected


def test_extreme_without_better_value_returns_the_same_state():
    whole = bound(agg.Max("v"), v=pa.string())
    one = Grouping(np.array([0]), 1)
    state = whole.update(whole.initial(1), pa.record_batch({"v": ["m"]}), one)
    assert whole.update(state, pa.record_batch({"v": ["m"]}), one)[0] is state[0]
    assert whole.merge(state, whole.initial(1))[0] is state[0]
    better = whole.update(state, pa.record_batch({"v": ["n"]}), one)
    assert (better[0].tolist(), state[0].tolist()) == (["n"], ["m"])


@pytest.mark.parametrize("aggregate", [agg.Min("v"), agg.TopK("v", 1), agg.TopK("n", 1, label="v")])
def test_values_without_order_are_refused(aggregate):
    with pytest.raises(TopologyError, match="of type list<item: int64> are not supported; use numbers"):
        bound(aggregate, v=pa.list_(pa.int64()), n=pa.int64())

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.errors import NumericOverflow, SchemaMismatch, TopologyError

DECIMAL = pa.decimal128(10, 2)
SCHEMA = pa.schema({"key": pa.int64(), "i": pa.int64(), "small": pa.int16(), "f": pa.float64(), "s": pa.string()})


def all_aggregates() -> dict[str, agg.Aggregate]:
    return {
        "rows": agg.Count(),
        "count": agg.Count("i"),
        "sum": agg.Sum("i"),
        "small": agg.Sum("small"),
        "length": agg.Sum(lambda batch: pc.binary_length(batch["s"]), columns=["s"]),
        "fsum": agg.Sum("f"),
        "mean": agg.Mean("i"),
        "min": agg.Min("i"),
        "max": agg.Max("f"),
        "words": agg.custom(
            ["s"],
            init=list,
            add=lambda acc, rows: [*acc, *rows["s"].to_pylist()],
            merge=lambda a, b: a + b,
            result=lambda acc: "|".join(str(word) for word in acc),
            type=pa.string(),
        ),
    }


def run(bundle: agg.Bundle, rows: pa.RecordBatch, keys: list[int]) -> list[np.ndarray]:
    """Return the state of all keys after the rows."""
    state = bundle.initial(len(keys))
    present = np.unique(rows["key"].to_numpy())
    if len(present) == 0:
        return state
    places = np.searchsorted(keys, present)
    after = bundle.update([column[places] for column in state], rows, Grouping.by(rows["key"].to_numpy()))
    for column, new in zip(state, after, strict=True):
        column[places] = new
    return state


def outcome(aggregate: agg.Aggregate, values: pa.Array, ordinals: list[int] | None = None) -> list[Any]:
    ordinals = [0] * len(values) if ordinals is None else ordinals
    rows = pa.record_batch({"v": values})
    bound = aggregate.bind(rows.schema)
    grouping = Grouping(np.array(ordinals, dtype=np.intp), max(ordinals) + 1)
    result = bound.result(bound.update(bound.initial(grouping.count), rows, grouping))
    assert result.type == bound.type
    result.validate(full=True)
    listed: list[Any] = result.to_pylist()
    return listed


row = st.tuples(
    st.integers(0, 4),
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | st.integers(-100, 100),
    st.none() | st.integers(-1000, 1000).map(float),
    st.none() | st.text("abc", max_size=3),
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@settings(deadline=None)
@given(st.lists(row, max_size=30), st.lists(row, max_size=30))
def test_merge_of_parts_equals_update_of_the_whole(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> None:
    bundle = agg.Bundle(all_aggregates(), SCHEMA)
    keys = list(range(5))
    whole = run(bundle, batch_of(left + right), keys)
    merged = bundle.merge(run(bundle, batch_of(left), keys), run(bundle, batch_of(right), keys))
    for name, array in bundle.results(whole).items():
        assert array.equals(bundle.results(merged)[name]), name


@settings(deadline=None)
@given(st.lists(row, min_size=1, max_size=40))
def test_aggregates_match_pandas(rows: list[tuple[Any, ...]]) -> None:
    batch = batch_of(rows)
    bundle = agg.Bundle(all_aggregates(), SCHEMA)
    keys = sorted({r[0] for r in rows})
    found = {name: array.to_pylist() for name, array in bundle.results(run(bundle, batch, keys)).items()}
    frame = pd.DataFrame(rows, columns=SCHEMA.names).astype({"i": "Int64", "small": "Int64", "f": "Float64"})
    groups = frame.groupby("key")

    def expect(series: pd.Series) -> list[object]:
        return [None if pd.isna(value) else value for value in series]

    assert found["rows"] == groups.size().tolist()
    assert found["count"] == groups["i"].count().tolist()
    assert found["sum"] == expect(groups["i"].sum(min_count=1))
    assert found["small"] == expect(groups["small"].sum(min_count=1))
    assert found["length"] == expect(frame.s.str.len().astype("Int64").groupby(frame.key).sum(min_count=1))
    assert found["fsum"] == expect(groups["f"].sum(min_count=1))
    assert found["mean"] == pytest.approx(expect(groups["i"].mean()))
    assert found["min"] == expect(groups["i"].min())
    assert found["max"] == expect(groups["f"].max())


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20),
    st.integers(-(2**63), 2**63 - 1),
)
def test_integer_sum_is_exact_or_raises_overflow(pairs: list[tuple[int, int]], start: int) -> None:
    ordinals = np.array([group for group, _ in pairs], dtype=np.intp)
    rows = pa.record_batch({"v": pa.array([value for _, value in pairs], pa.int64())})
    bound = agg.Sum("v").bind(rows.schema)
    current = [np.full(3, start), np.ones(3, bool)]
    exact = [start + sum(value for group, value in pairs if group == wanted) for wanted in range(3)]
    if all(-(2**63) <= value < 2**63 for value in exact):
        assert bound.update(current, rows, Grouping(ordinals, 3))[0].tolist() == exact
    else:
        with pytest.raises(NumericOverflow, match="'v'"):
            bound.update(current, rows, Grouping(ordinals, 3))
    assert current[0].tolist() == [start] * 3


def test_sum_near_the_limits_of_int64_is_exact_or_raises_overflow() -> None:
    for type_, value in (pa.uint64(), 2**64 - 1), (pa.uint64(), 2**63):
        with pytest.raises(NumericOverflow):
            outcome(agg.Sum("v"), pa.array([value], type_))
    bound = agg.Sum("v").bind(pa.schema({"v": pa.int8()}))
    great = [np.array([2**63 - 100]), np.array([True])]
    rows = pa.record_batch({"v": pa.array([-128, 127], pa.int8())})
    assert bound.update(great, rows, Grouping(np.zeros(2, np.intp), 1))[0].tolist() == [2**63 - 101]
    with pytest.raises(NumericOverflow):
        bound.merge(great, great)


def test_aggregates_of_only_nulls_are_null() -> None:
    nothing = pa.array([None, None], pa.int64())
    assert outcome(agg.Sum("v"), nothing) == [None]
    assert outcome(agg.Mean("v"), nothing) == [None]
    assert outcome(agg.Min("v"), nothing) == [None]
    assert outcome(agg.Count("v"), nothing) == [0]
    assert outcome(agg.Count(), nothing) == [2]


def test_nan_counts_in_sums_and_is_ignored_by_min_and_max() -> None:
    values = pa.array([float("nan"), 1.0, 2.0, float("nan")])
    groups = [0, 0, 0, 1]
    assert np.isnan(outcome(agg.Sum("v"), values, groups)[0])
    least, only_nan = outcome(agg.Min("v"), values, groups)
    assert least == 1.0
    assert np.isnan(only_nan)
    assert outcome(agg.Max("v"), values, groups)[0] == 2.0


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2], pa.uint64()),
        pa.array([3, 1, 2], pa.int8()),
        pa.array([2**63, 1, 2**64 - 1], pa.uint64()),
        pa.array([True, False, True]),
        pa.array([1.5, -1.5, 0.0], pa.float32()),
        pa.array(np.array([1.5, -1.5, 0.0], np.float16)),
        pa.array([dt.date(2020, 1, 2), dt.date(1960, 1, 1), dt.date(2024, 1, 1)]),
        pa.array([86_400_000, -86_400_000, 0], pa.date64()),
        pa.array([10, 0, 5], pa.time32("s")),
        pa.array([10, 0, 5], pa.time64("us")),
        pa.array([10, -7, 5], pa.duration("ns")),
        pa.array([10, -7, 5], pa.timestamp("us", "Europe/Berlin")),
        pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.00"), decimal.Decimal("2.50")], DECIMAL),
        pa.array([10, -7, 5]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_min_and_max_keep_the_type(values: pa.Array) -> None:
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    order = sorted(plain.to_pylist())
    longer = pa.concat_arrays([values, values.slice(0, 1).take(pa.array([None], pa.int64())), values])
    assert outcome(agg.Min("v"), longer) == [order[0]]
    assert outcome(agg.Max("v"), longer) == [order[-1]]
    assert outcome(agg.Max("v"), longer.slice(1, 2)) == [max(plain.to_pylist()[1:])]


def test_sum_supports_booleans_durations_decimals_and_floats() -> None:
    assert outcome(agg.Sum("v"), pa.array([True, False, True])) == [2]
    assert outcome(agg.Sum("v"), pa.array([1, 2], pa.duration("s"))) == [dt.timedelta(seconds=3)]
    money = [decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")]
    assert outcome(agg.Sum("v"), pa.array(money, DECIMAL)) == [decimal.Decimal("-1.75")]
    assert agg.Sum("v").bind(pa.schema({"v": DECIMAL})).type == pa.decimal128(19, 2)
    assert outcome(agg.Sum("v"), pa.array([0.5, 1.5], pa.float32())) == [2.0]


def test_count_supports_any_type() -> None:
    assert outcome(agg.Count("v"), pa.array(["a", None, "b"])) == [2]
    assert outcome(agg.Count("v"), pa.array([[1], None])) == [1]
    assert outcome(agg.Count("v"), pa.nulls(3)) == [0]
    assert outcome(agg.Count(lambda batch: batch["v"], columns=["v"]), pa.array([1, None])) == [1]


@pytest.mark.parametrize(
    ("aggregate", "type_", "words"),
    [
        (agg.Sum("v"), pa.string(), ["Sum('v')", "string"]),
        (agg.Sum("v"), pa.timestamp("s"), ["timestamp[s]"]),
        (agg.Sum("v"), pa.decimal128(30, 2), ["decimal128(30, 2)", "18 digits"]),
        (agg.Mean("v"), pa.date32(), ["Mean('v')", "date32"]),
        (agg.Min("v"), pa.list_(pa.string()), ["Min('v')", "list<item: string>", "custom"]),
        (agg.Max("v"), pa.month_day_nano_interval(), ["Max('v')"]),
    ],
)
def test_unsupported_types_are_refused(aggregate: agg.Aggregate, type_: pa.DataType, words: list[str]) -> None:
    with pytest.raises(TopologyError) as refused:
        agg.Bundle({"out": aggregate}, pa.schema({"v": type_}))
    for word in ["out", *words]:
        assert word in str(refused.value)


def test_bad_columns_and_functions_of_aggregates_are_refused() -> None:
    schema = pa.schema({"v": pa.int64(), "w": pa.int64()})
    for missing in agg.Sum("x"), agg.Count("x"), _first("x"):
        with pytest.raises(SchemaMismatch, match=r"'x'.*'v', 'w'"):
            missing.bind(schema)
    with pytest.raises(TopologyError, match="columns="):
        agg.Sum(lambda batch: batch["w"], columns=["v"]).bind(schema)
    with pytest.raises(TopologyError, match="columns="):
        agg.Sum(lambda batch: batch["w"])
    with pytest.raises(TopologyError, match="is for functions"):
        agg.Sum("v", columns=["v"])
    with pytest.raises(TopologyError, match="return an array, not int"):
        agg.Sum(lambda batch: 3, columns=["v"]).bind(schema)
    short = agg.Sum(lambda batch: batch["v"].slice(0, len(batch) // 2), columns=["v"]).bind(schema)
    rows = pa.record_batch({"v": [1, 2], "w": [1, 2]})
    with pytest.raises(TopologyError, match="1 values for 2 rows"):
        short.update(short.initial(1), rows, Grouping(np.zeros(2, np.intp), 1))
    with pytest.raises(TopologyError, match="Arrow type"):
        agg.custom(["v"], list, list.__add__, list.__add__, list, None)


def _first(column: str) -> agg.Aggregate:
    return agg.custom([column], list, lambda acc, rows: acc, lambda a, b: a, len, pa.int64())


def test_operand_functions_may_return_numpy_pandas_or_chunked_arrays() -> None:
    values = pa.array([1, 2, 3])
    for function in (
        lambda batch: batch["v"].to_numpy() * 2,
        lambda batch: batch["v"].to_pandas() * 2,
        lambda batch: pc.multiply(pa.chunked_array([batch["v"]]), 2),
    ):
        assert outcome(agg.Sum(function, columns=["v"]), values, [0, 1, 0]) == [8, 4]


def test_user_aggregate_may_change_its_accumulator_in_place() -> None:
    class Seen(agg.UserAggregate):
        type = pa.int64()

        def init(self) -> set[int]:
            return set()

        def add(self, acc: set[int], values: pa.RecordBatch) -> set[int]:
            acc.update(values["v"].to_pylist())
            return acc

        def merge(self, a: set[int], b: set[int]) -> set[int]:
            a |= b
            return a

        def result(self, acc: set[int]) -> int:
            return len(acc)

    rows = pa.record_batch({"v": [1, 2, 1], "w": [0, 0, 0]})
    bound = Seen(["v"]).bind(rows.schema)
    grouping = Grouping(np.array([0, 1, 0]), 2)
    once = bound.update(bound.initial(2), rows, grouping)
    twice = bound.update(once, pa.record_batch({"v": [7, 8, 9], "w": [0, 0, 0]}), grouping)
    assert bound.result(once).to_pylist() == [1, 1]
    assert bound.result(twice).to_pylist() == [3, 2]
    assert bound.result(bound.merge(once, bound.initial(2))).to_pylist() == [1, 1]
    assert bound.result(bound.merge(once, twice)).to_pylist() == [3, 2]
    assert once[0].tolist() == [{1}, {2}]


def test_user_aggregate_result_of_another_type_is_refused() -> None:
    bound = agg.custom(["v"], int, lambda acc, rows: 1, int.__add__, lambda acc: "word", pa.int64()).bind(
        pa.schema({"v": pa.int64()})
    )
    with pytest.raises(SchemaMismatch, match="int64"):
        bound.result([np.array([1], dtype=object), np.array([True])])


def test_user_aggregate_result_of_another_type_error_names_the_output() -> None:
    word = agg.custom(["v"], int, lambda acc, rows: 1, int.__add__, lambda acc: "word", pa.int64())
    bundle = agg.Bundle({"n": agg.Count(), "said": word}, pa.schema({"key": pa.int64(), "v": pa.int64()}))
    state = run(bundle, pa.record_batch({"key": [0], "v": [1]}), [0])
    with pytest.raises(SchemaMismatch, match=r"^output 'said': .*int64"):
        bundle.results(state)


def test_aggregates_are_picklable_and_have_a_repr() -> None:
    for aggregate in all_aggregates().values():
        assert cloudpickle.loads(cloudpickle.dumps(aggregate)).columns == aggregate.columns
    assert repr(agg.Sum("delay")) == "Sum('delay')"
    assert repr(agg.Count()) == "Count()"
    assert agg.Sum(lambda batch: batch, columns=["a", "b"]).columns == ("a", "b")


def test_update_with_no_rows_is_empty() -> None:
    bundle = agg.Bundle(all_aggregates(), SCHEMA)
    after = bundle.update(bundle.initial(0), batch_of([]), Grouping(np.empty(0, np.intp), 0))
    assert all(len(array) == 0 for array in bundle.results(after).values())


@settings(deadline=None)
@given(st.lists(st.integers(0, 70_000), max_size=50))
def test_grouping_matches_sorting(values: list[int]) -> None:
    grouping = Grouping.by(np.array(values, dtype=np.int64))
    ordered = [values[place] for place in grouping.order]
    assert ordered == sorted(values)
    assert [ordered[start] for start in grouping.starts] == sorted(set(values))
    assert grouping.sizes.tolist() == [values.count(value) for value in sorted(set(values))]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("aggregate", [agg.Sum("f"), agg.Mean("f")])
@pytest.mark.parametrize(("first", "then"), [(np.inf, -np.inf), (1.7e308, 1.7e308), (-np.inf, np.nan)])
def test_sum_of_infinite_and_of_large_values_is_that_of_floats_without_a_warning(aggregate, first, then):
    bound, grouping = aggregate.bind(SCHEMA), Grouping(np.array([0, 1]), 2)
    batches = [pa.record_batch({"f": [value, 1.0]}) for value in (first, then)]
    one, two = (bound.update(bound.initial(2), batch, grouping) for batch in batches)
    with np.errstate(all="ignore"):
        total = np.float64(first) + then
    for state in (bound.update(one, batches[1], grouping), bound.merge(one, two)):
        result, other = bound.result(state).to_pylist()
        assert np.array_equal(result, total, equal_nan=True)
        assert other == (2.0 if isinstance(aggregate, agg.Sum) else 1.0)

from __future__ import annotations

import hashlib
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic import aggregate as agg
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.hyperloglog import estimated, places_of, precision_of
from dask_elastic.topology.aggregates.ragged import joined_columns
from dask_elastic.topology.aggregates.value_hash import BITS, hash_values
from dask_elastic.vocab.errors import TopologyError

GROUPS = 3
# The coarsest sketch has 32 registers, so a key switches to registers after four values.
COARSE = agg.DistinctCount("n", error=0.2)
SCHEMA = pa.schema({"n": pa.int64()})
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, GROUPS - 1), st.none() | st.integers(0, 9)), min_size=1, max_size=9), max_size=4
)


def updated(aggregate, batches, groups=GROUPS):
    state = aggregate.initial(groups)
    for batch in batches:
        owners, values = zip(*batch, strict=True)
        rows = pa.record_batch({"n": pa.array(values, pa.int64())})
        state = aggregate.update(state, rows, Grouping(np.array(owners, np.intp), groups))
    return state


def as_lists(state):
    return [part.to_lists() for part in state]


def counted(aggregate, values):
    rows = pa.record_batch({"n": values})
    state = aggregate.update(aggregate.initial(1), rows, Grouping(np.zeros(len(values), np.intp), 1))
    return aggregate.result(state)[0].as_py()


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_distinct_count_of_few_values_is_exact(batches):
    aggregate = agg.DistinctCount("n").bind(SCHEMA)
    truth = [len({v for b in batches for own, v in b if own == group and v is not None}) for group in range(GROUPS)]
    assert aggregate.result(updated(aggregate, batches)).to_pylist() == truth


@settings(max_examples=150, deadline=None)
@given(BATCHES, BATCHES, BATCHES)
def test_merge_is_associative_commutative_and_equals_the_whole(first, second, third):
    aggregate = COARSE.bind(SCHEMA)
    a, b, c = (updated(aggregate, batches) for batches in (first, second, third))
    merged = as_lists(aggregate.merge(aggregate.merge(a, b), c))
    assert merged == as_lists(aggregate.merge(a, aggregate.merge(b, c)))
    assert as_lists(aggregate.merge(a, b)) == as_lists(aggregate.merge(b, a))
    assert merged == as_lists(updated(aggregate, [*first, *second, *third]))
    assert merged == as_lists(updated(aggregate, [*third, *first, *second]))
    assert as_lists(aggregate.merge(a, a)) == as_lists(a)


def test_more_groups_than_a_batch_has_rows_are_counted_apart():
    count = 70_000
    aggregate, part = agg.DistinctCount("n").bind(SCHEMA), Grouping(np.arange(count // 2), count // 2)
    states = []
    for values in (np.arange(count), np.arange(count) + 1):
        rows = pa.record_batch({"n": values})
        halves = [
            aggregate.update(aggregate.initial(part.count), half, part)
            for half in (rows[: part.count], rows[part.count :])
        ]
        states.append([joined_columns(columns) for columns in zip(*halves, strict=True)])
    once, twice = states[0], aggregate.merge(*states)
    assert aggregate.result(twice).to_pylist() == [2] * count
    rows, order = pa.record_batch({"n": np.arange(count)[::-1]}), np.arange(count)[::-1].copy()
    assert as_lists(aggregate.update(aggregate.initial(count), rows, Grouping(order, count))) == as_lists(once)
    assert as_lists(aggregate.merge(twice, once)) == as_lists(twice)


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_state_of_a_key_is_hashes_or_registers(batches):
    aggregate = COARSE.bind(SCHEMA)
    hashes, registers = updated(aggregate, batches)
    for own, sketch in zip(hashes.to_lists(), registers.to_lists(), strict=True):
        assert len(own) <= 4
        assert own == sorted(set(own))
        assert len(sketch) in (0, 32)
        assert not (own and sketch)


@pytest.mark.parametrize("error", [0.02, 0.03, 0.1])
@pytest.mark.parametrize("count", [10**2, 10**3, 10**4, 10**5, 10**6])
def test_distinct_count_stays_within_the_stated_error(count, error):
    aggregate = agg.DistinctCount("n", error=error).bind(SCHEMA)
    runs = 1 if count == 10**6 else 5
    found = [counted(aggregate, pa.array(np.arange(count) + seed * 10**9)) for seed in range(runs)]
    errors = [estimate / count - 1 for estimate in found]
    assert max(map(abs, errors)) <= 3 * error
    if count <= (1 << precision_of(error)) / 8:
        assert found == [count] * runs


def test_sketch_estimates_are_unbiased_with_the_stated_standard_error():
    precision, size = precision_of(0.1), 1 << precision_of(0.1)
    random = np.random.default_rng(5)
    for count in (20, 100, 300, 1000, 20_000):
        registers = np.zeros((400, size), np.uint8)
        for sketch in registers:
            places, ranks = places_of(random.integers(0, 1 << BITS, count, dtype=np.uint64), precision)
            np.maximum.at(sketch, places, ranks)
        errors = estimated(registers, precision) / count - 1
        assert errors.std() < 1.1 * 1.04 / math.sqrt(size)
        assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(len(errors)) + 0.01


def test_empty_and_saturated_sketches_are_estimated():
    assert estimated(np.zeros((1, 32), np.uint8), 5).tolist() == [0.0]
    full = estimated(np.full((1, 32), BITS - 5 + 1, np.uint8), 5)
    assert full[0] > 2.0**BITS or np.isinf(full[0])
    assert estimated(np.zeros((0, 32), np.uint8), 5).tolist() == []


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b", "a", "ä", "", None]),
        pa.array(["a", "b", "a", "ä", "", None], pa.large_string()),
        pa.array([b"a", b"b", b"a", b"\x00", b"", None]),
        pa.array([1, 2, 1, -1, 2**62, None]),
        pa.array([0.0, 1.5, -0.0, float("nan"), float("inf"), None]),
        pa.array(pd.to_datetime(["2013-01-01", "2013-01-02", "2013-01-01", "1969-01-01", "2100-01-01", None])),
        pa.array(["a", "b", "a", "ä", "", None]).dictionary_encode(),
    ],
)
def test_distinct_count_supports_all_types(values):
    aggregate = agg.DistinctCount("n").bind(pa.schema({"n": values.type}))
    assert counted(aggregate, values) == 4
    assert counted(aggregate, pa.concat_arrays([values, values]).slice(3)) == 4


def test_hash_of_nan_ignores_its_bits():
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64)
    assert len(set(hash_values(pa.array(bits.view(np.float64))).tolist())) == 1


def test_value_hashes_are_stable():
    # The published first numbers of SplitMix64 with seed 0.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    steps = (np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    assert hash_values(pa.array(steps)).tolist() == [number >> 16 for number in published]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ("a", "")]
    assert hash_values(pa.array(["a", ""])).tolist() == [int.from_bytes(d, "little") >> 16 for d in digests]


def test_update_without_new_values_returns_the_same_state():
    aggregate = COARSE.bind(SCHEMA)
    for values in ([1, 2], list(range(50))):
        batch = [(0, value) for value in values]
        before = updated(aggregate, [batch])
        rows = pa.record_batch({"n": pa.array(values)})
        after = aggregate.update(before, rows, Grouping(np.zeros(len(values), np.intp), GROUPS))
        assert all(new is old for old, new in zip(before, after, strict=True))


def test_distinct_count_of_many_keys_is_accurate():
    random = np.random.default_rng(1)
    groups, values = random.integers(0, 500, 60_000), random.integers(0, 10**9, 60_000)
    aggregate = agg.DistinctCount("n", error=0.1).bind(SCHEMA)
    state = aggregate.initial(500)
    for start in range(0, 60_000, 6_000):
        part = slice(start, start + 6_000)
        rows = pa.record_batch({"n": values[part]})
        state = aggregate.update(state, rows, Grouping(groups[part], 500))
    truth = pd.Series(values).groupby(groups).nunique().to_numpy()
    errors = np.array(aggregate.result(state).to_pylist()) / truth - 1
    assert np.abs(errors).max() < 5 * 0.1
    assert errors.std() < 0.1


@pytest.mark.parametrize("error", [0, 0.001, 0.3, 1, True, "0.1", None, float("nan")])
def test_distinct_count_refuses_an_error_out_of_range(error):
    with pytest.raises(TopologyError, match="give a relative standard error"):
        agg.DistinctCount("n", error=error)


def test_distinct_count_refuses_unsupported_types():
    with pytest.raises(TopologyError, match="values of type list<item: int64> are not supported"):
        agg.DistinctCount("n").bind(pa.schema({"n": pa.list_(pa.int64())}))
    assert repr(agg.DistinctCount("n", error=0.01)) == "DistinctCount('n', error=0.01)"

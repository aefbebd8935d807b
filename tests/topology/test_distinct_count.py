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
from dask_elastic.topology.aggregates.value_hash import BITS, hash_values
from dask_elastic.vocab.errors import TopologyError

GROUPS = 3
# The coarsest sketch: 32 registers, so that a key leaves its list of hashes after four values.
COARSE = agg.DistinctCount("n", error=0.2)
SCHEMA = pa.schema({"n": pa.int64()})
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, GROUPS - 1), st.none() | st.integers(0, 9)), min_size=1, max_size=9), max_size=4
)


def folded(aggregate, batches, groups=GROUPS):
    state = aggregate.initial(groups)
    for batch in batches:
        owners, values = zip(*batch, strict=True)
        rows = pa.record_batch({"n": pa.array(values, pa.int64())})
        state = aggregate.update(state, rows, Grouping(np.array(owners, np.intp), groups))
    return state


def seen(state):
    return [part.to_lists() for part in state]


def counted(aggregate, values):
    rows = pa.record_batch({"n": values})
    state = aggregate.update(aggregate.initial(1), rows, Grouping(np.zeros(len(values), np.intp), 1))
    return aggregate.result(state)[0].as_py()


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_few_values_are_counted_exactly(batches):
    aggregate = agg.DistinctCount("n").bind(SCHEMA)
    truth = [len({v for b in batches for own, v in b if own == group and v is not None}) for group in range(GROUPS)]
    assert aggregate.result(folded(aggregate, batches)).to_pylist() == truth


@settings(max_examples=150, deadline=None)
@given(BATCHES, BATCHES, BATCHES)
def test_merging_is_associative_and_commutative_and_what_the_whole_is(first, second, third):
    aggregate = COARSE.bind(SCHEMA)
    a, b, c = (folded(aggregate, batches) for batches in (first, second, third))
    merged = seen(aggregate.merge(aggregate.merge(a, b), c))
    assert merged == seen(aggregate.merge(a, aggregate.merge(b, c)))
    assert seen(aggregate.merge(a, b)) == seen(aggregate.merge(b, a))
    assert merged == seen(folded(aggregate, [*first, *second, *third]))
    assert merged == seen(folded(aggregate, [*third, *first, *second]))
    assert seen(aggregate.merge(a, a)) == seen(a)


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_a_key_has_hashes_or_registers(batches):
    aggregate = COARSE.bind(SCHEMA)
    hashes, registers = folded(aggregate, batches)
    for own, sketch in zip(hashes.to_lists(), registers.to_lists(), strict=True):
        assert len(own) <= 4
        assert own == sorted(set(own))
        assert len(sketch) in (0, 32)
        assert not (own and sketch)


@pytest.mark.parametrize("error", [0.02, 0.03, 0.1])
@pytest.mark.parametrize("count", [10**2, 10**3, 10**4, 10**5, 10**6])
def test_the_error_is_the_one_that_is_stated(count, error):
    aggregate = agg.DistinctCount("n", error=error).bind(SCHEMA)
    runs = 1 if count == 10**6 else 5
    found = [counted(aggregate, pa.array(np.arange(count) + seed * 10**9)) for seed in range(runs)]
    errors = [estimate / count - 1 for estimate in found]
    assert max(map(abs, errors)) <= 3 * error
    if count <= (1 << precision_of(error)) / 8:
        assert found == [count] * runs


def test_the_standard_error_is_the_one_that_is_stated_and_there_is_no_bias():
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


def test_sketches_without_and_full_of_values_are_counted():
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
def test_values_are_told_apart(values):
    aggregate = agg.DistinctCount("n").bind(pa.schema({"n": values.type}))
    assert counted(aggregate, values) == 4
    assert counted(aggregate, pa.concat_arrays([values, values]).slice(3)) == 4


def test_nan_is_one_value_whatever_its_bits():
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64)
    assert len(set(hash_values(pa.array(bits.view(np.float64))).tolist())) == 1


def test_hashes_stay_what_they_are():
    # The first numbers of SplitMix64 from the seed 0, as its author gives them.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    steps = (np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    assert hash_values(pa.array(steps)).tolist() == [number >> 16 for number in published]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ("a", "")]
    assert hash_values(pa.array(["a", ""])).tolist() == [int.from_bytes(d, "little") >> 16 for d in digests]


def test_a_batch_that_brings_nothing_new_changes_nothing():
    aggregate = COARSE.bind(SCHEMA)
    for values in ([1, 2], list(range(50))):
        batch = [(0, value) for value in values]
        before = folded(aggregate, [batch])
        rows = pa.record_batch({"n": pa.array(values)})
        after = aggregate.update(before, rows, Grouping(np.zeros(len(values), np.intp), GROUPS))
        assert all(new is old for old, new in zip(before, after, strict=True))


def test_many_keys_at_once_are_counted_like_one():
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
def test_errors_that_cannot_be_are_refused(error):
    with pytest.raises(TopologyError, match="give a relative standard error"):
        agg.DistinctCount("n", error=error)


def test_what_is_not_told_apart_is_refused():
    with pytest.raises(TopologyError, match="values of type list<item: int64> are not told apart"):
        agg.DistinctCount("n").bind(pa.schema({"n": pa.list_(pa.int64())}))
    assert repr(agg.DistinctCount("n", error=0.01)) == "DistinctCount('n', error=0.01)"

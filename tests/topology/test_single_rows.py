"""Aggregates give rows of one key each the same state with and without a pass by group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.errors import NumericOverflow

AGGREGATES = [agg.Count(), agg.Count("x"), agg.Sum("x"), agg.Mean("x"), agg.Min("x"), agg.Max("x")]
TYPES = [pa.int8(), pa.uint32(), pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.duration("s")]
COUNT = 40
"""More than the few rows that are added with Python's integers."""


def columns(type_):
    if pa.types.is_boolean(type_):
        one = st.booleans()
    elif pa.types.is_floating(type_):
        one = st.floats(-1e100, 1e100) | st.just(float("nan"))
    else:
        signed = not pa.types.is_unsigned_integer(type_)
        bits = min(40, type_.bit_width - signed)
        one = st.integers(-(2**bits) if signed else 0, 2**bits - 1)
    return st.lists(st.none() | one, min_size=COUNT, max_size=COUNT).map(lambda values: pa.array(values, type_))


@given(data=st.data())
def test_rows_of_one_key_each_need_no_pass_by_group(data):
    type_ = data.draw(st.sampled_from(TYPES))
    fit = [one for one in AGGREGATES if not (isinstance(one, agg.Mean) and pa.types.is_duration(type_))]
    bundle = Bundle({str(number): one for number, one in enumerate(fit)}, pa.schema({"x": type_}))
    single = by_group = bundle.initial(COUNT)
    for _ in range(2):
        rows = pa.record_batch({"x": data.draw(columns(type_))})
        single = bundle.update(single, rows, Grouping.of_single_rows(COUNT))
        by_group = bundle.update(by_group, rows, Grouping(np.arange(COUNT), COUNT))
    for one, other in zip(single, by_group, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63)])
def test_sum_of_a_single_row_raises_instead_of_wrapping(extreme):
    rows = pa.record_batch({"x": np.full(COUNT, extreme)})
    bundle = Bundle({"sum": agg.Sum("x")}, rows.schema)
    state = bundle.update(bundle.initial(COUNT), rows, Grouping.of_single_rows(COUNT))
    with pytest.raises(NumericOverflow, match="exceeds the range"):
        bundle.update(state, rows, Grouping.of_single_rows(COUNT))

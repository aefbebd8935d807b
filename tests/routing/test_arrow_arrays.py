"""Arrays are the same as those of pyarrow.array and to_numpy, which import pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dask_elastic.vocab.arrow_arrays import array_of, no_rows, numpy_of

NUMBERS = [np.dtype(code) for code in "?bhiqBHIQfd"]
TIMES = [np.dtype(f"{kind}8[{unit}]") for kind in "Mm" for unit in ("s", "ms", "us", "ns")]


def values_of(kinds):
    return st.sampled_from(kinds).flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 40)))


@settings(deadline=None, max_examples=60)
@given(values_of(NUMBERS + TIMES), st.data())
def test_array_has_values_and_nulls_of_pyarrow(values, data):
    mask = data.draw(st.none() | arrays.arrays(np.bool_, len(values)))
    # Given a mask, pyarrow keeps a NaT that is not masked.
    nulls = mask if mask is None or values.dtype.kind not in "Mm" else mask | np.isnat(values)
    expected = pa.array(values, mask=nulls)
    made = array_of(values, mask)
    made.validate(full=True)
    assert made.type == expected.type
    assert made.cast(pa.string()).equals(expected.cast(pa.string()))
    assert array_of(values[::2]).equals(array_of(values[::2].copy())) or values.dtype.kind in "fMm"


@settings(deadline=None, max_examples=60)
@given(values_of(NUMBERS + TIMES), st.data())
def test_values_of_slices_are_those_of_to_numpy(values, data):
    mask = data.draw(st.none() | arrays.arrays(np.bool_, len(values)))
    array = pa.array(values, mask=mask).slice(data.draw(st.integers(0, len(values))))
    np.testing.assert_array_equal(numpy_of(array), array.to_numpy(zero_copy_only=False))
    assert numpy_of(array).dtype == array.to_numpy(zero_copy_only=False).dtype


@pytest.mark.parametrize("values", [["a", "bc"], [None, None]])
def test_values_of_other_types_are_those_of_to_numpy(values):
    array = pa.array(values)
    np.testing.assert_array_equal(numpy_of(array), array.to_numpy(zero_copy_only=False))


def test_batch_without_rows_has_the_schema():
    types = [pa.int8(), pa.bool_(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.int64())]
    types += [pa.struct({"a": pa.timestamp("us", "UTC")}), pa.map_(pa.string(), pa.int8()), pa.decimal128(9, 2)]
    schema = pa.schema([(str(number), kind) for number, kind in enumerate(types)])
    assert no_rows(schema).schema.equals(schema)
    assert no_rows(schema).num_rows == 0
    no_rows(schema).validate(full=True)

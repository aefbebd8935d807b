from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.state.ragged_column import RaggedColumn
from dask_elastic.topology.aggregates.ragged import Ragged

SLOTS = 6
WRITES = st.lists(
    st.dictionaries(st.integers(0, SLOTS - 1), st.lists(st.integers(0, 99), max_size=40), min_size=1), max_size=25
)


def ragged(lists, dtype):
    values = np.empty(sum(map(len, lists)), dtype)
    values[:] = [value for one in lists for value in one]
    return Ragged.of_lengths(values, np.array([len(one) for one in lists], np.int64))


@settings(max_examples=60, deadline=None)
@given(WRITES, st.sampled_from([np.uint8, np.int64, object]))
def test_ragged_column_returns_last_written_lists(writes, dtype):
    column = RaggedColumn(np.dtype(dtype), SLOTS)
    model = {slot: [] for slot in range(SLOTS)}
    for number, write in enumerate(writes):
        column.write(np.array([*write], np.intp), ragged([*write.values()], dtype))
        model.update(write)
        if number % 7 == 6:
            column.clear(np.array([number % SLOTS]))
            model[number % SLOTS] = []
        if number % 9 == 8:
            column.grow(2)
        slots = np.arange(SLOTS)[:: -1 if number % 2 else 1]
        assert column.take(slots).to_lists() == [model[slot] for slot in slots.tolist()]
        assert column.lengths(slots).tolist() == [len(model[slot]) for slot in slots.tolist()]


def test_ragged_column_lists_of_unchanged_length_are_overwritten_in_place():
    column = RaggedColumn(np.dtype(np.uint8), 3)
    slots = np.arange(3)
    column.write(slots, Ragged.of_lengths(np.arange(96, dtype=np.uint8), np.array([32, 32, 32])))
    buffer = column._data
    for shift in range(100):
        column.write(slots[:2], Ragged.of_lengths(np.full(64, shift, np.uint8), np.array([32, 32])))
    assert column._data is buffer
    assert column.take(slots).values.tolist() == [99] * 64 + list(range(64, 96))


def test_ragged_column_buffer_stays_proportional_to_its_content():
    column = RaggedColumn(np.dtype(np.int64), 1)
    for length in range(1, 400):
        column.write(np.array([0]), Ragged.of_lengths(np.arange(length), np.array([length])))
        assert len(column._data) <= max(256, 4 * length)
    column.write(np.array([0]), Ragged.of_lengths(np.arange(3), np.array([3])))
    for length in (2, 3) * 600:
        column.write(np.array([0]), Ragged.of_lengths(np.arange(length), np.array([length])))
    assert len(column._data) == 256


@pytest.mark.parametrize("dtype", [np.uint8, object])
def test_ragged_column_sample_contains_only_stored_elements(dtype):
    column = RaggedColumn(np.dtype(dtype), 4)
    assert column.sample(8) == []
    column.write(np.array([1, 3]), ragged([[7, 8], [9]], dtype))
    assert column.sample(8) == [7, 9]

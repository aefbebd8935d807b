from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.ragged import Ragged, spans

LISTS = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)
FAST = settings(max_examples=80, deadline=None)


def ragged(lists: list[list[int]]) -> Ragged:
    values = np.array([value for one in lists for value in one], np.int64)
    return Ragged.of_lengths(values, np.array([len(one) for one in lists], np.int64))


@FAST
@given(LISTS)
def test_ragged_round_trips_lists(lists):
    made = ragged(lists)
    assert made.to_lists() == lists
    assert len(made) == len(lists)
    assert made.lengths.tolist() == [len(one) for one in lists]
    assert made.owners.tolist() == [number for number, one in enumerate(lists) for _ in one]
    assert made.ranks_from_end().tolist() == [len(one) - 1 - place for one in lists for place in range(len(one))]


@FAST
@given(LISTS, st.data())
def test_ragged_operations_match_python_lists(lists, data):
    made = ragged(lists)
    count = len(lists)
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=5) if count else st.just([]))
    assert made.take(np.array(chosen, np.intp)).to_lists() == [lists[place] for place in chosen]
    others = data.draw(st.lists(st.lists(st.integers(-9, 9), max_size=3), min_size=count, max_size=count))
    assert made.joined(ragged(others)).to_lists() == [a + b for a, b in zip(lists, others, strict=True)]
    where = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    expected = [b if new else a for a, b, new in zip(lists, others, where, strict=True)]
    assert made.replaced(np.array(where, np.bool_), ragged(others)).to_lists() == expected
    most = data.draw(st.integers(0, 4))
    assert made.newest(most).to_lists() == [one[len(one) - min(most, len(one)) :] for one in lists]
    assert made.filtered(made.values > 0).to_lists() == [[value for value in one if value > 0] for one in lists]


@FAST
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=20))
def test_ragged_grouped_keeps_the_order_of_rows(rows):
    made = Ragged.grouped(
        np.array([value for _, value in rows], np.int64), np.array([group for group, _ in rows], np.intp), 5
    )
    assert made.to_lists() == [[value for own, value in rows if own == group] for group in range(5)]


def test_spans_of_empty_ranges_are_empty():
    assert spans(np.array([], np.int64), np.array([], np.int64)).tolist() == []
    assert spans(np.array([4, 9]), np.array([0, 0])).tolist() == []


def test_ragged_has_a_repr():
    assert repr(ragged([[1], []])) == "Ragged(2 lists of 1 elements of int64)"


def test_ragged_field_starts_with_empty_lists():
    field = Field("seen", np.dtype(np.float64), ragged=True)
    assert field.initially(2).to_lists() == [[], []]
    assert Field("seen", np.dtype(np.float64)).initially(2).tolist() == [0.0, 0.0]
    assert field != Field("seen", np.dtype(np.float64))
    assert repr(field) == "Field('seen', float64, ragged)"


def test_ragged_supports_object_elements():
    values = np.array([None, "a", (1, 2)], dtype=object)
    made = Ragged(values, np.array([0, 2, 3]))
    assert made.joined(Ragged.empty(2, np.dtype(object))) is made
    assert made.take(np.array([1, 0])).to_lists() == [[(1, 2)], [None, "a"]]


@pytest.mark.parametrize("kept", [True, False])
def test_ragged_filter_that_keeps_all_returns_itself(kept):
    made = ragged([[1, 2], [3]])
    same = made.filtered(np.full(3, kept))
    assert (same is made) == kept

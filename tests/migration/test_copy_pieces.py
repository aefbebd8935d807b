"""Rows that are copied at once, while the tasks of an executor wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.migration.copy_pieces import FIRST, CopyPieces

SECONDS = 0.002


def run(pieces, costs):
    """Copy pieces that cost so many seconds per row each; return how long tasks waited for each."""
    waits = []
    for cost in costs:
        waits.append(pieces.rows * cost)
        pieces.took(pieces.rows, waits[-1])
    return waits


@given(st.floats(1e-9, 1e-4))
def test_tasks_wait_for_about_the_time_whatever_a_row_costs(cost):
    waits = run(CopyPieces(8192, SECONDS), [cost] * 20)
    # Pieces of the fewest rows may take longer.
    assert max(waits[1:]) <= max(SECONDS, 32 * cost) * (1 + 1e-9)
    assert waits[-1] >= min(0.9 * SECONDS, 8192 * cost, waits[-2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.integers(1, 10_000))
def test_pieces_have_between_one_row_and_the_most(costs, most):
    pieces = CopyPieces(most, SECONDS)
    for cost in costs:
        assert 1 <= pieces.rows <= most
        pieces.took(pieces.rows, pieces.rows * cost)


def test_one_fast_piece_doubles_the_next_one_and_one_slow_piece_shrinks_it():
    pieces = CopyPieces(1 << 20, SECONDS)
    pieces.took(FIRST, 1e-9)
    assert pieces.rows == 2 * FIRST
    pieces.took(2 * FIRST, 10 * SECONDS)
    assert pieces.rows == 2 * FIRST // 10


def test_small_rest_of_a_round_does_not_change_the_size_unless_it_was_slow():
    pieces = CopyPieces(1 << 20, SECONDS)
    pieces.took(3, 1e-9)
    assert pieces.rows == FIRST
    pieces.took(64, 2 * SECONDS)
    assert pieces.rows == 32

"""What moves between nodes cost beside the load that they take from a task."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.migration.move_work import MOST_PAUSE, MOVE_SECONDS, MoveSpeeds, work_of_moves
from dask_elastic.migration.strategy import AUTO, DISRUPTIVE, INSTANT, LABELLED, SMOOTH, STRATEGIES

SPEEDS = MoveSpeeds(pause=0.002, label_pause=0.01, bytes_per_second=1e8, merge_bytes_per_second=2e8)

seconds = st.floats(0, 10)
speeds = st.builds(MoveSpeeds, st.floats(0, 1), st.floats(0, 1), st.floats(1e6, 1e10), st.floats(1e6, 1e10))


def cost(strategy, work, state, beside=None, known=SPEEDS):
    work, state = np.array(work, float), np.array(state, float)
    return work_of_moves(strategy, work, work if beside is None else np.array(beside, float), state, known)


def test_state_lets_rows_wait_or_is_merged_as_the_strategy_does():
    state = [0.0, 2e7]
    assert cost(LABELLED, [0.4, 0.4], state) == pytest.approx([MOVE_SECONDS + 0.4 * 0.01, MOVE_SECONDS + 0.4 * 0.21])
    assert cost(INSTANT, [0.4, 0.4], state) == pytest.approx([MOVE_SECONDS + 0.0008, MOVE_SECONDS + 0.0008 + 0.1])
    assert cost(SMOOTH, [0.4, 0.4], state) == pytest.approx([MOVE_SECONDS + 0.0008] * 2)
    assert cost(DISRUPTIVE, [0.4], [2e7], beside=[1.5]) == pytest.approx([MOVE_SECONDS + 1.5 * 0.21])


def test_long_pauses_are_bounded():
    assert cost(LABELLED, [0.4], [1e10]) == pytest.approx([MOVE_SECONDS + 0.4 * MOST_PAUSE])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_growing_backlog_outweighs_the_pause_of_any_move(strategy):
    """The gain is the work of one of many shards; it grows with the backlog, and the pause does not."""
    shards = 128
    costs, gains = [], []
    for backlog in (2.0, 200.0):
        work = np.full(shards, backlog / shards)
        costs.append(cost(strategy, work, np.full(shards, 2e7), beside=np.full(shards, backlog))[0])
        gains.append(work[0])
    assert costs[0] > 0
    assert costs[1] < gains[1]


@given(seconds, st.floats(0, 1e9), speeds)
def test_auto_costs_what_the_cheaper_strategy_does(work, state, known):
    both = [cost(one, [work], [state], known=known) for one in (LABELLED, INSTANT)]
    assert cost(AUTO, [work], [state], known=known) == min(both)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(seconds, seconds, st.floats(0, 1e9), st.floats(0, 1e9), speeds)
def test_costs_are_positive_and_grow_with_state_and_work(strategy, work, more_work, state, more_state, known):
    least = cost(strategy, [work], [state], known=known)[0]
    assert least >= MOVE_SECONDS
    assert cost(strategy, [work + more_work], [state], known=known)[0] >= least
    assert cost(strategy, [work], [state + more_state], known=known)[0] >= least

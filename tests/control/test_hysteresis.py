from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.hysteresis import MOST_DOUBLINGS, REGRET, Hysteresis


def test_hysteresis_before_full_time_returns_current_cores():
    hysteresis = Hysteresis(10.0)
    for second in range(10):
        hysteresis.add(float(second), np.array([1, 2]))
    assert hysteresis.most(9.0, np.array([5, 5])).tolist() == [5, 5]
    hysteresis.add(10.0, np.array([1, 2]))
    assert hysteresis.most(10.0, np.array([5, 5])).tolist() == [1, 2]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=12, max_size=60))
def test_hysteresis_returns_maximum_of_last_seconds(needs):
    hysteresis = Hysteresis(10.0)
    for second, need in enumerate(needs):
        hysteresis.add(float(second), np.array([need]))
    assert hysteresis.most(float(len(needs) - 1), np.array([99])).tolist() == [max(needs[-11:])]


def release_then_grow(hysteresis, start, load=4.0, later=4.0):
    hysteresis.released(start, load)
    hysteresis.grown(start + 5)
    hysteresis.calm(start + 6, later)


def test_hysteresis_premature_release_doubles_time_up_to_eightfold():
    hysteresis = Hysteresis(10.0)
    for turn in range(5):
        release_then_grow(hysteresis, 100.0 * turn)
        assert hysteresis.seconds == 10.0 * 2 ** min(turn + 1, MOST_DOUBLINGS)


def test_hysteresis_release_before_risen_load_is_not_premature():
    hysteresis = Hysteresis(10.0)
    release_then_grow(hysteresis, 0.0, later=8.0)
    assert hysteresis.seconds == 10.0


def test_hysteresis_growth_long_after_release_is_not_premature():
    hysteresis = Hysteresis(10.0)
    hysteresis.released(0.0, 4.0)
    hysteresis.grown(REGRET * 10 + 1)
    hysteresis.calm(REGRET * 10 + 2, 4.0)
    assert hysteresis.seconds == 10.0


def test_hysteresis_growth_without_release_keeps_time():
    hysteresis = Hysteresis(10.0)
    hysteresis.grown(5.0)
    hysteresis.calm(6.0, 1.0)
    assert hysteresis.seconds == 10.0


def test_hysteresis_time_halves_after_long_time_without_premature_release():
    hysteresis = Hysteresis(10.0)
    release_then_grow(hysteresis, 0.0)
    hysteresis.calm(100.0, 4.0)
    assert hysteresis.seconds == 20.0
    hysteresis.calm(130.0, 4.0)
    assert hysteresis.seconds == 10.0

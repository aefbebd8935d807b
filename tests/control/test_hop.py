from __future__ import annotations

import math

import pytest

from dask_elastic.control.hop import ENOUGH, KEPT, LEAST_ERROR, MOST_ERROR, Hop


def fed(*moments):
    hop = Hop()
    for moment in moments:
        hop.add(*moment)
    return hop


def test_nothing_is_said_before_enough_is_measured():
    few = fed(*[(1.0, 0.1, 0.1)] * (ENOUGH - 1))
    assert (few.seconds, few.error) == (0.0, 1.0)
    few.add(1.0, 0.1, 0.1)
    assert few.seconds == pytest.approx(0.9)


def test_single_moments_do_not_count():
    hop = fed(*[(0.05, 0.03, 0.02)] * 6, (9.0, 0.03, 2e-5), (9.0, 0.03, 2e-5))
    assert hop.seconds == pytest.approx(0.02)
    assert hop.error == pytest.approx(1.5)


def test_the_hop_is_never_negative():
    assert fed(*[(0.01, 0.03, 0.03)] * ENOUGH).seconds == 0.0


def test_the_error_stays_within_limits():
    assert fed(*[(1.0, 1.0, 1e-3)] * ENOUGH).error == MOST_ERROR
    assert fed(*[(1.0, 1e-3, 1.0)] * ENOUGH).error == LEAST_ERROR


def test_what_the_model_cannot_say_is_no_error():
    assert fed(*[(1.0, 0.5, math.inf)] * ENOUGH, *[(1.0, 0.5, 0.0)] * ENOUGH).error == 1.0


def test_sojourns_count_even_where_no_latency_is_known():
    hop = fed(*[(None, 0.3, 0.2)] * ENOUGH)
    assert (hop.seconds, hop.error) == (0.0, pytest.approx(1.5))


def test_old_moments_are_forgotten():
    hop = fed(*[(1.0, 0.1, 0.1)] * KEPT, *[(0.2, 0.1, 0.1)] * KEPT)
    assert hop.seconds == pytest.approx(0.1)

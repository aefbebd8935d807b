from __future__ import annotations

import math

import pytest

from dask_elastic.control.calibration import ENOUGH, KEPT, LEAST_ERROR, MOST_ERROR, Calibration


def fed(*moments):
    calibration = Calibration()
    for moment in moments:
        calibration.add(*moment)
    return calibration


def test_calibration_with_few_measurements_returns_defaults():
    few = fed(*[(1.0, 0.1, 0.1)] * (ENOUGH - 1))
    assert (few.hop, few.error) == (0.0, 1.0)
    few.add(1.0, 0.1, 0.1)
    assert few.hop == pytest.approx(0.9)


def test_calibration_ignores_single_outliers():
    calibration = fed(*[(0.05, 0.03, 0.02)] * 6, (9.0, 0.03, 2e-5), (9.0, 0.03, 2e-5))
    assert calibration.hop == pytest.approx(0.02)
    assert calibration.error == pytest.approx(1.5)


def test_calibrated_hop_is_never_negative():
    assert fed(*[(0.01, 0.03, 0.03)] * ENOUGH).hop == 0.0


def test_calibrated_error_stays_within_bounds():
    assert fed(*[(1.0, 1.0, 1e-3)] * ENOUGH).error == MOST_ERROR
    assert fed(*[(1.0, 1e-3, 1.0)] * ENOUGH).error == LEAST_ERROR


def test_calibration_ignores_infinite_or_zero_modelled_sojourn():
    assert fed(*[(1.0, 0.5, math.inf)] * ENOUGH, *[(1.0, 0.5, 0.0)] * ENOUGH).error == 1.0


def test_calibration_without_latency_still_uses_sojourn():
    calibration = fed(*[(None, 0.3, 0.2)] * ENOUGH)
    assert (calibration.hop, calibration.error) == (0.0, pytest.approx(1.5))


def test_calibration_forgets_old_measurements():
    calibration = fed(*[(1.0, 0.1, 0.1)] * KEPT, *[(0.2, 0.1, 0.1)] * KEPT)
    assert calibration.hop == pytest.approx(0.1)

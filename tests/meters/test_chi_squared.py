"""Quantiles of the χ² distribution are those of SciPy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from dask_elastic.meters.chi_squared import chi_squared_above


@given(chance=st.floats(1e-9, 1 - 1e-6), freedom=st.integers(1, 4_096))
def test_quantile_is_that_of_scipy(chance, freedom):
    assert chi_squared_above(chance, freedom) == pytest.approx(float(chi2.isf(chance, freedom)), rel=1e-8)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 23, 255, 4_095])
@pytest.mark.parametrize("chance", [1e-4, 0.75])
def test_quantiles_in_use_are_exact(chance, freedom):
    assert chi_squared_above(chance, freedom) == pytest.approx(float(chi2.isf(chance, freedom)), rel=1e-12)

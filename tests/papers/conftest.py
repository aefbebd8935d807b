"""The numbers of figures in small settings, which take seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pytest

from dask_elastic.papers.figures import catalogue


@pytest.fixture(scope="session")
def quick_table() -> Callable[[str], pa.Table]:
    """Return a function that computes a figure in small settings, once for all tests."""
    found = catalogue.figures()
    return cache(lambda name: found[name].compute(0, True))

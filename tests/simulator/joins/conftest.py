"""Lets the tests of this folder import the modules in it, and those of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("join_job", "join_scenario")
for folder in Path(__file__).parents[:2]:
    sys.path.insert(0, str(folder))
import join_scenario  # noqa: E402, F401  imported by path

for _ in range(2):
    sys.path.pop(0)

from dask_elastic.executor.joins import row_buffer  # noqa: E402
from dask_elastic.state import store  # noqa: E402


@pytest.fixture(autouse=True)
def stores_are_packed_often(monkeypatch):
    """Let slots be renumbered in small simulations, too."""
    monkeypatch.setattr(store, "_WORTH_PACKING", 12)
    monkeypatch.setattr(row_buffer, "_WORTH_TIDYING", 4)

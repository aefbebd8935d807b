"""Lets the tests of this folder import the modules in it, and collects garbage rarely."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "checkpointed_scenario",
    "durable_scenario",
    "followed_job",
    "leased_job",
    "racing",
    "saturated",
    "scenario",
    "timed_scenario",
    "timer_job",
    "timer_scenario",
)
sys.path.insert(0, str(Path(__file__).parent))
import checkpointed_scenario  # noqa: E402, F401  imported by path
import durable_scenario  # noqa: E402, F401
import leased_job  # noqa: E402, F401
import racing  # noqa: E402, F401
import saturated  # noqa: E402, F401
import scenario  # noqa: E402, F401
import timed_scenario  # noqa: E402, F401
import timer_scenario  # noqa: E402, F401

sys.path.pop(0)

# A program, which imports test modules of the folders below.
collect_ignore = ["soak.py"]


@pytest.fixture(autouse=True)
def _rare_collections() -> Iterator[None]:
    """Let simulations, which make many objects that live long, take a tenth less."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    yield
    gc.set_threshold(*usual)

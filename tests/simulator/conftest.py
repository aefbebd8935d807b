"""Lets the tests here import the modules beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("followed_job", "scenario", "timed_scenario")
sys.path.insert(0, str(Path(__file__).parent))
import scenario  # noqa: E402, F401  found by its place
import timed_scenario  # noqa: E402, F401

sys.path.pop(0)

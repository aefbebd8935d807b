"""Lets the tests of this folder import the modules in it, and those of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "window_job",
    "window_scenario",
    "sharing_scenario",
    "count_scenario",
    "session_scenario",
    "function_scenario",
    "consolidate_scenario",
    "instant_scenario",
    "smooth_scenario",
    "merged_scenario",
    "corrected_scenario",
)
sys.path.insert(0, str(Path(__file__).parent))
import consolidate_scenario  # noqa: E402, F401  imported by path
import corrected_scenario  # noqa: E402, F401  imported by path
import count_scenario  # noqa: E402, F401  imported by path
import function_scenario  # noqa: E402, F401  imported by path
import instant_scenario  # noqa: E402, F401  imported by path
import merged_scenario  # noqa: E402, F401  imported by path
import session_scenario  # noqa: E402, F401  imported by path
import sharing_scenario  # noqa: E402, F401  imported by path
import smooth_scenario  # noqa: E402, F401  imported by path
import window_scenario  # noqa: E402, F401  imported by path

sys.path.pop(0)

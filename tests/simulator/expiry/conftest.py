"""Lets the tests of this folder import the modules in it, and those of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("expiry_job", "expiry_scenario")
sys.path.insert(0, str(Path(__file__).parent))
import expiry_scenario  # noqa: E402, F401  imported by path

sys.path.pop(0)

"""Lets the tests of this folder import the modules in it, and those of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("durable_home_scenario", "home_scenario")
for folder in Path(__file__).parents[:2]:
    sys.path.insert(0, str(folder))
import durable_home_scenario  # noqa: E402, F401  imported by path
import home_scenario  # noqa: E402, F401

for _ in range(2):
    sys.path.pop(0)

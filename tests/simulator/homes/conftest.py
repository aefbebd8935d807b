"""Lets the tests of this folder import the modules in it, and those of the folders above and beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = [*(HERE.parent / name for name in ("joins", "fused", "windows")), HERE.parent, HERE]

pytest.register_assert_rewrite(
    "durable_home_scenario", "home_scenario", "fused_scenario", "instant_scenario", "join_scenario", "sharing_scenario"
)
for folder in FOLDERS:
    sys.path.insert(0, str(folder))
import durable_home_scenario  # noqa: E402, F401  imported by path
import fused_scenario  # noqa: E402, F401
import home_scenario  # noqa: E402, F401
import instant_scenario  # noqa: E402, F401
import join_scenario  # noqa: E402, F401
import sharing_scenario  # noqa: E402, F401

for _ in FOLDERS:
    sys.path.pop(0)

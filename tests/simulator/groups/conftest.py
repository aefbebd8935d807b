"""Lets the tests of this folder import the modules in it, and those of the folders above and beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = [*(HERE.parent / name for name in ("joins", "fused", "windows")), HERE.parent, HERE]

pytest.register_assert_rewrite(
    "count_scenario",
    "durable_group_scenario",
    "function_scenario",
    "fused_scenario",
    "group_scenario",
    "join_scenario",
    "merged_group_scenario",
    "session_scenario",
    "window_scenario",
)
for folder in FOLDERS:
    sys.path.insert(0, str(folder))
import count_scenario  # noqa: E402, F401  imported by path
import durable_group_scenario  # noqa: E402, F401
import function_scenario  # noqa: E402, F401
import fused_scenario  # noqa: E402, F401
import group_scenario  # noqa: E402, F401
import join_scenario  # noqa: E402, F401
import merged_group_scenario  # noqa: E402, F401
import session_scenario  # noqa: E402, F401
import window_scenario  # noqa: E402, F401

for _ in FOLDERS:
    sys.path.pop(0)

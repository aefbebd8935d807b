"""The oracle of windows, a module that tests import by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("window_oracle")
sys.path.insert(0, str(Path(__file__).parent))
import window_oracle  # noqa: E402, F401  found by its folder
import window_rows  # noqa: E402, F401  imported by path

sys.path.pop(0)

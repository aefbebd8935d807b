"""Lets the tests of this folder import the modules in it, and those of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("paced_job")
sys.path.insert(0, str(Path(__file__).parent))
import paced_job  # noqa: E402, F401  imported by path

sys.path.pop(0)

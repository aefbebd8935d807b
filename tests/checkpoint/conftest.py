"""Lets the tests of this folder import the modules in it."""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec
import pytest

pytest.register_assert_rewrite("checkpointed")
sys.path.insert(0, str(Path(__file__).parent))
import checkpointed  # noqa: E402, F401  imported by path

sys.path.pop(0)


@pytest.fixture(autouse=True)
def _empty_memory():
    """The file system memory:// is one for the process."""
    yield
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]

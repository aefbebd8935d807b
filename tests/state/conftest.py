"""The storages on which tests of state run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_elastic.state import slots, stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

IN_MEMORY = Path("/dev/shm")
"""A file system in memory: tests make thousands of files, which takes long on a disk that others use too."""


@pytest.fixture(scope="session")
def state_folder() -> Path:
    """A folder for files of state."""
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


@pytest.fixture(scope="module", params=["memory", "reserved", "disk"])
def storage(request: pytest.FixtureRequest, state_folder: Path) -> Iterator[str]:
    """Where all stores keep their state; reserved arrays are extended, and files unmapped, as often as possible."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "reserved":
            patch.setattr(stored_keys.StoredKeys, "address_space", 2**26, raising=False)
            patch.setattr(slots, "_RESERVED_FROM", 0)
            patch.setattr(slots, "_EXTENSION_BYTES", 1)
            patch.setattr(slots, "_FIRST_CAPACITY", 4)
        if request.param == "disk":
            files = UnnamedFiles(state_folder, resident=lambda: 1, most=-1)
            patch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
        yield request.param

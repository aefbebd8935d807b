"""A private temporary directory, for files that child processes read; removed when this process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def private_directory(purpose: str) -> Path:
    """Create an empty directory that only this user can read and that is removed when this process ends.

    Parameters
    ----------
    purpose : str
        Part of the directory's name.

    Returns
    -------
    Path
        The directory.
    """
    made = Path(tempfile.mkdtemp(prefix=f"dask_elastic-{purpose}-"))
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(directory: Path, owner: int) -> None:
    # A forked process inherits the exit handler, but must not remove its parent's directory.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)

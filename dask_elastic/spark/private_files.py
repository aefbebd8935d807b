"""A directory of this process alone, for files that programs which it starts must find; gone when it ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def private_directory(purpose: str) -> Path:
    """Make an empty directory that only this user can read, and that is removed when this process ends.

    Parameters
    ----------
    purpose : str
        Part of its name.

    Returns
    -------
    Path
        Where it is.
    """
    made = Path(tempfile.mkdtemp(prefix=f"dask_elastic-{purpose}-"))
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(directory: Path, owner: int) -> None:
    # A forked process inherits what is registered, but not the directory.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)

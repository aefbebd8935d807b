"""Private temporary directories, for files that child processes read; they are removed when this process has ended."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "dask_elastic-"
LOCK = "owner.lock"
"""A file in each private directory; the process that owns the directory has it locked."""


def private_directory(purpose: str) -> Path:
    """Create a directory that only this user can read and that is removed when this process ends.

    It also removes such directories of processes that were killed, which could not do so themselves.

    Parameters
    ----------
    purpose : str
        Part of the directory's name.

    Returns
    -------
    Path
        The directory; it contains nothing but a lock.
    """
    _remove_leftovers()
    made, lock = _made(purpose)
    while lock is None:
        made, lock = _made(purpose)
    atexit.register(_remove, made, lock, os.getpid())
    return made


def _made(purpose: str) -> tuple[Path, BinaryIO | None]:
    """Make and lock a directory; without a lock, if another process has removed it as a leftover before."""
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    lock = (made / LOCK).open("xb")
    # Where files cannot be locked, no process removes leftovers.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fstat(lock.fileno()).st_nlink:
        return made, lock
    lock.close()
    return made, None


def _remove_leftovers() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Other processes remove leftovers, too. Directories without a lock are not from here.
        with suppress(OSError):
            found = directory.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                _remove_unlocked(directory)


def _remove_unlocked(directory: Path) -> None:
    with (directory / LOCK).open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)


def _remove(directory: Path, lock: BinaryIO, owner: int) -> None:
    # A forked process inherits the exit handler, but must not remove its parent's directory.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()

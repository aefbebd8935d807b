"""Private temporary directories, for files that child processes read; they are removed when this process has ended."""

from __future__ import annotations

import atexit
import fcntl
import os
import platform
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "dask_elastic-"


def private_directory(purpose: str) -> Path:
    """Create a directory that only this user can read and that is removed when this process ends.

    It also removes such directories of processes that were killed, which could not do so themselves.

    Parameters
    ----------
    purpose : str
        A word of its name.

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


def lock_name() -> str:
    """Return the name of the lock file in private directories: the process that owns a directory has locked it.

    The name contains that of the host: on file systems that hosts share, a lock may hold on its own host only.
    """
    return f"owner-{platform.node()}.lock"


def _made(purpose: str) -> tuple[Path, BinaryIO | None]:
    """Make and lock a directory; without a lock, if another process has removed it as a leftover before."""
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    path = made / lock_name()
    lock = path.open("xb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        # Another process may be able to lock the file later; it removes no directory without one.
        path.unlink(missing_ok=True)
        return made, lock
    if path.exists():
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
    with (directory / lock_name()).open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _delete(directory)


def _delete(directory: Path) -> None:
    """Delete a directory, its lock last: without the lock, the next process would leave what is still there."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != lock_name():
            with suppress(OSError):
                path.unlink()
    if not {path.name for path in directory.iterdir()} - {lock_name()}:
        shutil.rmtree(directory)


def _remove(directory: Path, lock: BinaryIO, owner: int) -> None:
    # A forked process inherits the exit handler, but must not remove its parent's directory.
    if os.getpid() == owner:
        # What cannot be deleted, the next process tries to delete.
        with suppress(OSError):
            _delete(directory)
        lock.close()

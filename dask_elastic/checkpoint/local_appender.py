"""A local file to which bytes are appended, each time until they are on storage."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from dask_elastic.checkpoint.file_ref import Contents

# Linux makes the size durable too, but not the time of the last change.
_sync_data = getattr(os, "fdatasync", os.fsync)

# The most that Linux and macOS take at once.
_MOST_BUFFERS = 1024


class LocalAppender:
    """Appends to a new file.

    Parameters
    ----------
    path : Path
        The file, which must not exist.

    Raises
    ------
    FileExistsError
        If it exists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows"
    ...     appender = LocalAppender(path)
    ...     appender.write([b"ro", b"ws"])
    ...     appender.sync()
    ...     appender.close()
    ...     path.read_bytes()
    b'rows'
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, buffers: Iterable[Contents]) -> None:
        """Append bytes, which `sync` makes durable."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        waiting = deque(view for view in views if view.nbytes)
        while waiting:
            # Joining them would copy large groups while no other thread can run.
            written = os.writev(self._file.fileno(), list(islice(waiting, _MOST_BUFFERS)))
            while waiting and written >= waiting[0].nbytes:
                written -= waiting.popleft().nbytes
            if written:
                waiting[0] = waiting[0][written:]

    def sync(self) -> None:
        """Return when all bytes are on storage."""
        _sync_data(self._file.fileno())

    def close(self) -> None:
        """Close the file; closing it twice is no error."""
        self._file.close()

"""A local file to which bytes are appended, each time until they are on storage."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dask_elastic.checkpoint.file_ref import Contents

# Linux makes the size durable too, but not the time of the last change.
_sync_data = getattr(os, "fdatasync", os.fsync)


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
    >>> path = Path(tempfile.mkdtemp()) / "rows"
    >>> appender = LocalAppender(path)
    >>> appender.write([b"ro", b"ws"])
    >>> appender.sync()
    >>> appender.close()
    >>> path.read_bytes()
    b'rows'
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, buffers: Iterable[Contents]) -> None:
        """Append bytes, which `sync` makes durable."""
        left = memoryview(b"".join(buffers))
        while left:
            left = left[self._file.write(left) or 0 :]

    def sync(self) -> None:
        """Return when all bytes are on storage."""
        _sync_data(self._file.fileno())

    def close(self) -> None:
        """Close the file; closing it twice is no error."""
        self._file.close()

"""Reference to a file of a checkpoint, by which a damaged file is recognised."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.vocab.errors import CheckpointCorrupt

Contents: TypeAlias = bytes | memoryview
"""What is written and read: bytes, or any object with their interface, such as a `pyarrow.Buffer`."""


@dataclass(frozen=True)
class FileRef:
    """A file that was written completely.

    Parameters
    ----------
    path : str
        The path relative to the job's folder, with `/`.
    nbytes : int
        The size in bytes.
    checksum : str
        The checksum of the contents, such as "crc32:1c291ca3".
    rows : int
        The number of rows, 0 if the file has none.
    """

    path: str
    nbytes: int
    checksum: str
    rows: int = 0

    def check_size(self, where: str, nbytes: int | None) -> None:
        """Raise `CheckpointCorrupt` if a file is missing or has another size.

        Parameters
        ----------
        where : str
            The file's full path, for the message.
        nbytes : int or None
            The size that was found; None if there is no such file.

        Raises
        ------
        CheckpointCorrupt
            When it differs.
        """
        if nbytes != self.nbytes:
            found = "no such file" if nbytes is None else f"{nbytes:,} bytes"
            raise CheckpointCorrupt(where, f"{self.nbytes:,} bytes", found)

    def check(self, where: str, contents: Contents) -> None:
        """Raise `CheckpointCorrupt` unless these are the contents that were written.

        Parameters
        ----------
        where : str
            The file's full path, for the message.
        contents : bytes-like
            What was read.

        Raises
        ------
        CheckpointCorrupt
            When size or checksum differ.
        """
        self.check_size(where, memoryview(contents).nbytes)
        self.check_checksum(where, checksum(contents))

    def check_checksum(self, where: str, found: str) -> None:
        """Raise `CheckpointCorrupt` if a checksum differs from that of what was written.

        Parameters
        ----------
        where : str
            The file's full path, for the message.
        found : str
            The checksum of what was read.

        Raises
        ------
        CheckpointCorrupt
            When it differs.
        """
        if found != self.checksum:
            raise CheckpointCorrupt(where, f"checksum {self.checksum}", found)


def checksum(contents: Contents) -> str:
    """Return the checksum of some bytes.

    Parameters
    ----------
    contents : bytes-like
        The bytes.

    Returns
    -------
    str
        Algorithm and value.

    Examples
    --------
    >>> checksum(b"rows")
    'crc32:0a8bf4a1'
    """
    return _described(zlib.crc32(contents))


class Measured:
    """Passes buffers on, and measures their size and checksum meanwhile.

    Parameters
    ----------
    buffers : iterable of bytes-like
        The buffers.

    Attributes
    ----------
    nbytes : int
        The bytes so far.

    Examples
    --------
    >>> measured = Measured([b"ro", b"ws"])
    >>> b"".join(measured), measured.nbytes, measured.checksum == checksum(b"rows")
    (b'rows', 4, True)
    """

    def __init__(self, buffers: Iterable[Contents]) -> None:
        self._buffers = buffers
        self._crc = 0
        self.nbytes = 0
        self._supplied = 0.0
        self._asked: float | None = None

    @property
    def checksum(self) -> str:
        """The checksum of the buffers so far."""
        return _described(self._crc)

    @property
    def supply_seconds(self) -> float:
        """The seconds so far in which the iterable had to be waited for; called from any thread."""
        asked = self._asked
        return self._supplied + (0.0 if asked is None else time.monotonic() - asked)

    def _supply(self) -> Iterator[Contents]:
        buffers = iter(self._buffers)
        while True:
            self._asked = began = time.monotonic()
            try:
                buffer = next(buffers)
            except StopIteration:
                return
            finally:
                # In this order, another thread may count the seconds twice for a moment, but never miss them.
                self._supplied += time.monotonic() - began
                self._asked = None
            yield buffer

    def __iter__(self) -> Iterator[Contents]:
        for buffer in self._supply():
            self._crc = zlib.crc32(buffer, self._crc)
            self.nbytes += memoryview(buffer).nbytes
            yield buffer


def _described(crc: int) -> str:
    return f"crc32:{crc:08x}"

"""The files of state on disk: without names, so that the system deletes them with the process that opened them."""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.vocab.errors import StateDiskError

ROWS_AT_ONCE = 1024
"""Rows that are read or written between two checks of the mapped memory: each may map 16 pages."""

RESIDENT_BYTES = 256 * 2**20
"""Bytes of files that are mapped into the process at a time, unless the caller sets them."""

_PAGE_BITS = mmap.PAGESIZE.bit_length() - 1
_PREFETCHED_READS = 64
_NUMBERS = itertools.count()


class UnnamedFiles:
    """Makes files without names in a folder, and limits how much of them counts as memory of the process.

    Parameters
    ----------
    folder : Path or str
        The folder; it must exist, and should not be in a file system in memory.
    resident : callable, optional
        Returns the bytes of files that are mapped into the process now; by default nothing is limited.
    most : int, optional
        The most such bytes. Above them all pages are unmapped: they stay in the page cache of the system, which evicts
        them when memory is short, and no longer count as memory of the process.

    Notes
    -----
    A file without a name disappears when the process ends, however it ends, so no restart finds leftovers. Used by
    several threads.

    Examples
    --------
    >>> import tempfile
    >>> files = UnnamedFiles(tempfile.gettempdir())
    >>> file = files.open()
    >>> file.extend(4096)
    >>> files.nbytes
    4096
    """

    def __init__(self, folder: Path | str, resident: Callable[[], int] = lambda: 0, most: int = RESIDENT_BYTES) -> None:
        self.folder = Path(folder)
        self._resident = resident
        self._room = most
        self._most = resident() + most
        self._touched = 0
        self._open: weakref.WeakValueDictionary[int, UnnamedFile] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def open(self) -> UnnamedFile:
        """Return a new, empty file.

        Raises
        ------
        StateDiskError
            If it cannot be made.
        """
        file = UnnamedFile(self)
        self._open[next(self._numbers)] = file
        return file

    def _files(self) -> list[UnnamedFile]:
        # Not `values`, which fails if another thread opens a file meanwhile.
        return [file for reference in self._open.valuerefs() if (file := reference()) is not None]

    @property
    def nbytes(self) -> int:
        """The bytes of all files on disk."""
        return sum(file.nbytes for file in self._files())

    def touched(self, rows: int) -> None:
        """Note that rows at arbitrary places were read or written; unmaps all files if too much is mapped."""
        # Threads may overwrite each other's counts: the limit is checked a little later then.
        self._touched += rows
        if self._touched < ROWS_AT_ONCE:
            return
        self._touched = 0
        if self._resident() > self._most:
            self.unmap()
            # What stays mapped are libraries, of which more may have been loaded meanwhile.
            self._most = self._resident() + self._room

    def unmap(self) -> None:
        """Unmap the pages of all files; the next access of a page maps it again."""
        for file in self._files():
            file.unmap()

    def failed(self, action: str, error: OSError) -> StateDiskError:
        """Return the error for a file that could not be made, extended, read or written."""
        try:
            free = f"{shutil.disk_usage(self.folder).free / 2**20:,.0f} MiB are free there"
        except OSError:
            free = "the folder cannot be read"
        return StateDiskError(
            f"state on disk: a file in {self.folder} could not be {action}: {error.strerror or error}; {free}. Free "
            "space, or give workers another folder (dask-worker --local-directory, or "
            "temporary-directory in Dask's configuration)"
        )


class UnnamedFile:
    """One file: read and written at offsets, or mapped into memory.

    Parameters
    ----------
    files : UnnamedFiles
        Its siblings.

    Attributes
    ----------
    nbytes : int
        Its size. The blocks are allocated when it is extended, so that a full disk is an error then, not a signal that
        ends the process at some later write to the mapped memory.
    """

    def __init__(self, files: UnnamedFiles) -> None:
        self.files = files
        self.nbytes = 0
        self._map: mmap.mmap | None = None
        self._prefetches = 0
        try:
            self._descriptor = _open_unnamed(files.folder)
        except OSError as error:
            raise files.failed("made", error) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def extend(self, nbytes: int) -> None:
        """Allocate blocks, so that the file has `nbytes` bytes; new ones are zero.

        Raises
        ------
        StateDiskError
            If the disk is full.
        """
        if nbytes <= self.nbytes:
            return
        try:
            os.posix_fallocate(self._descriptor, self.nbytes, nbytes - self.nbytes)
        except OSError as error:
            raise self.files.failed("extended", error) from error
        self.nbytes = nbytes

    def map(self, dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
        """Return the first `length` elements as an array in mapped memory; extends the file if it is too short."""
        self.extend(max(1, length * dtype.itemsize))
        try:
            mapped = mmap.mmap(self._descriptor, self.nbytes)
            # Keys are at random places: reading ahead would fill the cache with pages that are not needed.
            mapped.madvise(mmap.MADV_RANDOM)
        except OSError as error:
            raise self.files.failed("mapped", error) from error
        self._map = mapped
        return np.frombuffer(mapped, dtype, length)

    def unmap(self) -> None:
        """Unmap the pages; see `UnnamedFiles.unmap`."""
        mapped = self._map
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file."""
        parts: list[bytes] = []
        while nbytes:
            try:
                part = os.pread(self._descriptor, nbytes, offset)
            except OSError as error:
                raise self.files.failed("read", error) from error
            if not part:
                raise self.files.failed("read", OSError(0, f"it ends at byte {offset}"))
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return b"".join(parts)

    def append(self, data: bytes | memoryview) -> int:
        """Write at the end of the file; returns the offset.

        Raises
        ------
        StateDiskError
            If the disk is full.
        """
        offset, rest = self.nbytes, memoryview(data).cast("B")
        try:
            while rest:
                done = os.pwrite(self._descriptor, rest, offset + len(data) - len(rest))
                rest = rest[done:]
        except OSError as error:
            raise self.files.failed("written", error) from error
        self.nbytes += len(data)
        return offset

    def fetched(self, offsets: npt.NDArray[np.int64], take: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return what `take` returns; lets the disk read the pages at `offsets` ahead if those before were not cached.

        A page that is not cached stops the thread until it is read, one after the other; asked for in advance, the disk
        reads many at a time. Asking costs about as much as a row, so it is done only while pages are missing.
        """
        if self._prefetches:
            self._prefetches -= 1
            self._prefetch(offsets)
            return take()
        before = _pages_read()
        taken = take()
        if 32 * (_pages_read() - before) > len(offsets):
            self._prefetches = _PREFETCHED_READS
        return taken

    def _prefetch(self, offsets: npt.NDArray[np.int64]) -> None:
        pages = np.unique(offsets >> _PAGE_BITS)
        first = np.ones(len(pages), np.bool_)
        # Linux reads at most 32 pages for one request, and ignores the rest of it.
        first[1:] = (np.diff(pages) > 4) | (pages[1:] >> 5 != pages[:-1] >> 5)
        starts = pages[first]
        ends = pages[np.append(first[1:], True)] + 1
        for start, length in zip(
            (starts << _PAGE_BITS).tolist(), ((ends - starts) << _PAGE_BITS).tolist(), strict=True
        ):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)


def _open_unnamed(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    with suppress(AttributeError, OSError):
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    # Not every file system has files that never had a name. Other threads make some at the same time, and perhaps a
    # process of the same number in another container.
    while True:
        path = folder / f"state-{os.getpid()}-{next(_NUMBERS)}"
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            path.unlink()
            return descriptor


def _pages_read() -> int:
    """Return the pages that this thread has waited for, because they were not in memory."""
    return resource.getrusage(_WHOSE).ru_majflt


_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

"""Files in a folder of the local file system, or of one that is mounted."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents
from dask_elastic.checkpoint.local_appender import LocalAppender

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalFiles:
    """Writes files that survive a crash: each appears complete, or not at all.

    Parameters
    ----------
    root : str
        The folder, absolute; it need not exist.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = LocalFiles(folder)
    ...     files.write("state/1.arrows", [b"ro", b"ws"])
    ...     files.read("state/1.arrows").to_pybytes(), files.sizes("state"), files.folders("")
    (b'rows', {'1.arrows': 4}, ['state'])
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def write(self, path: str, buffers: Iterable[Contents]) -> None:
        """Write a new file; raise FileExistsError if there is one."""
        self._write(path, buffers, _publish)

    def append(self, path: str, appender: LocalAppender | None, buffers: Iterable[Contents]) -> LocalAppender:
        """Append to the file of an appender, or to a new file; return the appender when all is on storage."""
        if appender is not None:
            appender.write(buffers)
            appender.sync()
            return appender
        target = self._root / path
        self._make_folder(target.parent)
        appender = LocalAppender(target)
        try:
            appender.write(buffers)
            appender.sync()
            _sync(target.parent)
        except BaseException:
            appender.close()
            raise
        return appender

    def claim(self, path: str, contents: bytes) -> None:
        """Create a small file; raise FileExistsError if there is one, also if another process is faster."""
        self._write(path, [contents], _claim)

    def _write(self, path: str, buffers: Iterable[Contents], publish: Callable[[Path, Path], None]) -> None:
        """Write a hidden file, then have it published under its name."""
        target = self._root / path
        self._make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            _write_new(partial, buffers)
            publish(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        _sync(target.parent)

    def read(self, path: str, nbytes: int | None = None) -> pa.Buffer:
        """Return the contents of a file, or its first bytes; raise FileNotFoundError if there is none."""
        with pa.OSFile(str(self._root / path)) as file:
            return file.read_buffer(nbytes)

    def open(self, path: str) -> pa.NativeFile:
        """Open a file to read it in parts; raise FileNotFoundError if there is none."""
        return pa.OSFile(str(self._root / path))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the files in a folder by name, hidden ones included."""
        found = {}
        for entry in self._entries(folder):
            # Others delete files meanwhile, such as those of old checkpoints.
            with suppress(FileNotFoundError):
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
        return found

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def sync(self, folder: str) -> None:
        """Make the names of the files in a folder durable; a folder that does not exist has none."""
        with suppress(FileNotFoundError):
            _sync(self._root / folder)

    def delete(self, path: str) -> None:
        """Delete a file; one that does not exist is no error."""
        (self._root / path).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if it is empty."""
        try:
            (self._root / folder).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            # The same error would otherwise mean that the file to write exists.
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder)) from error
        # A file survives a crash of the machine only if all folders above it do.
        try:
            _sync(folder.parent)
        except OSError:
            # Otherwise the next file would be written into it, as if its name were durable.
            with suppress(OSError):
                folder.rmdir()
            raise


def _write_new(path: Path, buffers: Iterable[Contents]) -> None:
    """Write a file that must not exist yet, durably."""
    with path.open("xb") as file:
        for buffer in buffers:
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())


def _publish(partial: Path, target: Path) -> None:
    """Give a complete file its name, atomically, unless the name is in use."""
    try:
        os.link(partial, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, "the file exists already", str(target)) from None
        partial.rename(target)


def _claim(partial: Path, target: Path) -> None:
    """Give a complete file its name, unless the name is in use; of several processes, only one does."""
    try:
        os.link(partial, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy_new(partial, target)


def _copy_new(source: Path, target: Path) -> None:
    """Copy a file to a name that must not be in use; a copy that fails takes no name."""
    with target.open("xb") as file:
        try:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse this for folders, whose names they make durable at once.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)

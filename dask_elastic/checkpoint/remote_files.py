"""Files in an object store, or in any other file system of fsspec."""

from __future__ import annotations

import errno
import inspect
import os
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents
from dask_elastic.checkpoint.local_appender import LocalAppender

_IN_PLACE = frozenset({"ftp", "hdfs", "sftp", "smb", "ssh", "webhdfs"})
"""Protocols of file systems that show a file from its first byte on; they rename without such a state in between."""

_DESCRIPTORS = "/proc/self/fd"
"""Where Linux lists the open files of the process, also those without a name."""


class RemoteFiles:
    """Writes each file by one request, after which an object store shows it complete; elsewhere, renames it then.

    Parameters
    ----------
    filesystem : AbstractFileSystem
        The file system.
    root : str
        The folder there.

    Notes
    -----
    That a file never replaces another is guaranteed by the store where it supports conditional requests through fsspec
    (S3, Google Cloud Storage), by most servers of SFTP, and else checked before. A writer that is killed leaves a
    hidden file where files are renamed, as on a local disk.

    Examples
    --------
    >>> import fsspec
    >>> files = RemoteFiles(fsspec.filesystem("memory"), "/remote-files")
    >>> files.write("state/1.arrows", [b"ro", b"ws"])
    >>> files.read("state/1.arrows").to_pybytes(), files.sizes("state"), files.folders("")
    (b'rows', {'1.arrows': 4}, ['state'])
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._conditional = "mode" in inspect.signature(filesystem.pipe_file).parameters
        protocols = filesystem.protocol
        self._in_place = not _IN_PLACE.isdisjoint([protocols] if isinstance(protocols, str) else protocols)

    def write(self, path: str, buffers: Iterable[Contents]) -> None:
        """Write a new file; raise FileExistsError if there is one."""
        target = self._path(path)
        contents = b"".join(buffers)
        if not self._conditional and self._filesystem.exists(target):
            raise FileExistsError(target)
        if self._in_place:
            self._write_hidden(target, contents)
            return
        options = {"mode": "create"} if self._conditional else {}
        try:
            self._filesystem.pipe_file(target, contents, **options)
        except FileExistsError:
            raise
        except BaseException:
            # Some file systems keep what was written before the error. If the file cannot be deleted either, no
            # manifest refers to it. Another process, or a later call, may have written its own file meanwhile. A
            # complete file stays: this may be long after the deadline, when the caller has found and used it.
            with suppress(OSError):
                found = self._filesystem.cat_file(target)
                if len(found) < len(contents) and contents.startswith(found):
                    self._filesystem.rm_file(target)
            raise

    def _write_hidden(self, target: str, contents: bytes) -> None:
        """Write a hidden file, then give it its name: what a killed writer leaves is not taken for a damaged file."""
        folder, _, name = target.rpartition("/")
        partial = f"{folder}/.{name}.{uuid.uuid4().hex}"
        try:
            self._create(partial, contents)
            if self._filesystem.exists(target):
                raise FileExistsError(target)
            self._rename(partial, target)
            if self._filesystem.exists(partial):
                # WebHDFS answers without an error, also if the file exists.
                raise OSError(errno.EIO, "it was not renamed", partial)
        except BaseException:
            with suppress(OSError):
                self._filesystem.rm_file(partial)
            raise

    def _create(self, path: str, contents: bytes) -> None:
        """Write a file, in a folder that is made if need be: SFTP and FTP do not make it."""
        try:
            self._filesystem.pipe_file(path, contents)
        except Exception:  # each client has its own errors, and those of FTP are no OSError
            folder = path.rpartition("/")[0]
            if self._filesystem.exists(folder):
                raise
            self._make_folder(folder)
            self._filesystem.pipe_file(path, contents)

    def _make_folder(self, folder: str) -> None:
        if not folder or self._filesystem.exists(folder):
            return
        self._make_folder(folder.rpartition("/")[0])
        try:
            self._filesystem.mkdir(folder, create_parents=False)
        except Exception:  # another process may have made it at the same moment
            # FTP keeps listings, which are of the time before.
            self._filesystem.invalidate_cache()
            if not self._filesystem.exists(folder):
                raise

    def _rename(self, path: str, target: str) -> None:
        """Rename a file to a name that is free."""
        client = getattr(self._filesystem, "ftp", None)
        if client is None or not hasattr(client, "posix_rename"):
            self._filesystem.mv(path, target)
            return
        # fsspec asks for an extension of OpenSSH, which other servers lack, and which replaces files.
        try:
            client.rename(path, target)
        except OSError as error:
            if self._filesystem.exists(target):
                raise FileExistsError(target) from error
            raise

    def append(self, path: str, appender: LocalAppender | None, buffers: Iterable[Contents]) -> LocalAppender | None:
        """Write a new file, and return None: nothing can be appended to it."""
        self.write(path, buffers)
        return None

    def claim(self, path: str, contents: bytes) -> None:
        """Create a small file; raise FileExistsError if there is one."""
        self.write(path, [contents])

    def read(self, path: str, nbytes: int | None = None) -> pa.Buffer:
        """Return the contents of a file, or its first bytes; raise FileNotFoundError if there is none."""
        return pa.py_buffer(self._filesystem.cat_file(self._path(path), end=nbytes))

    def open(self, path: str) -> pa.NativeFile:
        """Copy a file to the folder for temporary files, and open it; raise FileNotFoundError if there is none."""
        try:
            return self._copied(path)
        except OSError:
            # That folder may not exist, or have no space. If it was the storage that failed, this call says so.
            return pa.BufferReader(self.read(path))

    def _copied(self, path: str) -> pa.NativeFile:
        descriptor, name = tempfile.mkstemp(prefix="dask_elastic-state-")
        named = True
        try:
            copy = Path(_DESCRIPTORS) / str(descriptor)
            if copy.exists():
                # Without a name, the file disappears with a process that is killed while it copies.
                Path(name).unlink()
                named = False
            self._filesystem.get_file(self._path(path), name if named else str(copy))
            return pa.OSFile(name if named else str(copy))
        finally:
            # The open file stays readable, and its space is free when it is closed.
            os.close(descriptor)
            if named:
                Path(name).unlink()

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the files in a folder by name."""
        return {_name(entry): int(entry["size"]) for entry in self._entries(folder) if entry["type"] == "file"}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return sorted(_name(entry) for entry in self._entries(folder) if entry["type"] == "directory")

    def sync(self, folder: str) -> None:
        """Do nothing: what such storage shows is durable."""

    def delete(self, path: str) -> None:
        """Delete a file; one that does not exist is no error."""
        with suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(path))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if it is empty; object stores have none."""
        # In some file systems, rmdir deletes the files in the folder too.
        if not self._entries(folder):
            with suppress(OSError):
                self._filesystem.rmdir(self._path(folder))

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        target = self._path(folder)
        # Other processes write here too, so a listing from fsspec's cache would be stale.
        self._filesystem.invalidate_cache(target)
        try:
            entries: list[dict[str, Any]] = self._filesystem.ls(target, detail=True)
        except FileNotFoundError:
            return []
        return [entry for entry in entries if entry["name"].rstrip("/") != target.rstrip("/")]

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _name(entry: dict[str, Any]) -> str:
    name: str = entry["name"]
    return name.rstrip("/").rpartition("/")[2]

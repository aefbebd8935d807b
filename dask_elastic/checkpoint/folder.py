"""The folder of one job's checkpoints, at a local path or at a URL that fsspec supports."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from dask_elastic.checkpoint.deadline import seconds_for, within
from dask_elastic.checkpoint.file_ref import Contents, FileRef, Measured
from dask_elastic.checkpoint.local_appender import LocalAppender
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.checkpoint.remote_files import RemoteFiles
from dask_elastic.checkpoint.storage.folder_changes import FolderChanges
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import lacks_password, shown_url

Files: TypeAlias = LocalFiles | RemoteFiles
_PART_BYTES = 16 << 20
_Result = TypeVar("_Result")


class CheckpointFolder:
    """Writes and reads the files of one job's checkpoints; a value that can be pickled.

    Parameters
    ----------
    url : str or path
        A local path, or a URL such as `s3://bucket/delays`. All workers and the scheduler must reach it.
    storage_options : mapping, optional
        Options for fsspec, such as credentials.
    changes : FolderChanges, optional
        Counts the calls that change the folder; a copy that is pickled counts its own.

    Attributes
    ----------
    shown : str
        The path or URL for people, without a password.

    Raises
    ------
    CheckpointError
        If it is neither a path nor a URL, its protocol is unknown, or the protocol's library is not installed.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://checkpoints/delays")
    >>> folder.check_writable()
    >>> ref = folder.write("state/1/planes.arrows", [b"ro", b"ws"], rows=1)
    >>> ref.nbytes, folder.read(ref).to_pybytes()
    (4, b'rows')
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        changes: FolderChanges | None = None,
    ) -> None:
        text = os.fspath(url) if isinstance(url, (str, os.PathLike)) else url
        if not isinstance(text, str) or not text.strip():
            raise CheckpointError(f"a checkpoint folder is {url!r}; give a path or a URL such as s3://bucket/job.")
        self.url = text.rstrip("/") if "://" in text else Path(text).expanduser().absolute().as_posix()
        self.shown = shown_url(self.url)
        if lacks_password(self.url):
            raise CheckpointError(
                f"checkpoint folder {self.url}: *** stands for a password, which texts and the status of a job do not "
                "show. Give the URL with the password."
            )
        self.storage_options = dict(storage_options or {})
        self._changes = changes or FolderChanges()
        self._open()

    def _open(self) -> None:
        # Workers import this module with their plugin, and most jobs take no checkpoints.
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        try:
            filesystem, root = fsspec.core.url_to_fs(self.url, **self.storage_options)
        except (ImportError, ValueError, TypeError, OSError) as error:
            raise CheckpointError(
                f"checkpoint folder {self.shown}: {type(error).__name__}: {shown_url(error)}. Use a local path, or a "
                "URL of a file system that fsspec supports, and install its library on the client, the scheduler and "
                "all workers."
            ) from shown_error(error)
        self._full_url: str = filesystem.unstrip_protocol(root)
        self._root: str = root
        self._files: Files = (
            LocalFiles(root) if isinstance(filesystem, LocalFileSystem) else RemoteFiles(filesystem, root)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointFolder, (self.url, self.storage_options)

    def __repr__(self) -> str:
        return f"CheckpointFolder({self.shown!r})"

    def place(self) -> str:
        """Return the same for all spellings of one folder; it follows symbolic links, and may block.

        Returns
        -------
        str
            A path, or a URL.

        Examples
        --------
        >>> CheckpointFolder("/tmp/delays/").place() == CheckpointFolder("file:///tmp/planes/../delays").place()
        True
        """
        return os.path.realpath(self._root) if isinstance(self._files, LocalFiles) else self._full_url

    def where(self, path: str) -> str:
        """Return the full path of a file, for messages."""
        return f"{self.shown}/{path}"

    def check_writable(self) -> None:
        """Write, read and delete a small file, so that a folder that cannot be used is found at submit.

        Raises
        ------
        CheckpointError
            When one of these fails.
        """
        path = f"probe-{uuid.uuid4().hex}"
        contents = path.encode()
        found = b""
        step = "write"
        try:
            self._change(path, lambda: self._files.write(path, [contents]))
            step = "read"
            found = self._within(0, lambda: self._files.read(path).to_pybytes())
            step = "delete"
            self._change(path, lambda: self._files.delete(path))
        except Exception as error:
            # The libraries of object stores raise errors of their own.
            raise self._failure(step, path, error) from shown_error(error)
        if found != contents:
            raise CheckpointError(f"{self.where(path)}: the contents differ from what was written. Use other storage.")

    def write(self, path: str, buffers: Iterable[Contents], rows: int = 0) -> FileRef:
        """Write a new file, which appears complete or not at all; never replace an existing one.

        Parameters
        ----------
        path : str
            The path within this folder, with `/`; folders are created.
        buffers : iterable of bytes-like
            The contents.
        rows : int, optional
            The number of rows, for the reference.

        Returns
        -------
        FileRef
            Refers to the file, which is durable now.

        Raises
        ------
        CheckpointError
            When it cannot be written, or exists already.
        """
        measured = Measured(buffers)
        try:
            # The storage does not answer for the time in which rows that are written while they arrive are waited for.
            within(
                lambda: seconds_for(measured.nbytes) + measured.supply_seconds,
                lambda: self._changes.make(self.where(path), lambda: self._files.write(path, measured)),
                self.shown,
            )
        except CheckpointError:
            raise
        except Exception as error:
            raise self._failure("write", path, error) from shown_error(error)
        return FileRef(path, measured.nbytes, measured.checksum, rows)

    @property
    def appends(self) -> bool:
        """Whether the storage can append to a file."""
        return isinstance(self._files, LocalFiles)

    def append(self, path: str, appender: LocalAppender | None, buffers: Iterable[Contents]) -> LocalAppender | None:
        """Append to a file that only this call's process writes; the bytes are on storage when this returns.

        Parameters
        ----------
        path : str
            The path within this folder.
        appender : LocalAppender or None
            What the call before has returned for this path; None creates the file.
        buffers : iterable of bytes-like
            What to append.

        Returns
        -------
        LocalAppender or None
            For the next call; None if the storage cannot append, so that the next call needs another path.

        Raises
        ------
        CheckpointError
            When the file cannot be written.
        """
        change = functools.partial(self._files.append, path, appender, buffers)
        return self._attempt("append to", path, change, changes=True)

    def claim(self, path: str, owner: str = "") -> bool:
        """Create a file that no other call creates; return False if it exists already.

        Parameters
        ----------
        path : str
            The path within this folder.
        owner : str, optional
            Who claims it; the file begins with this.

        Returns
        -------
        bool
            Whether this call created it, and no other call of any process.

        Raises
        ------
        CheckpointError
            When it cannot be written.
        """
        try:
            # No other call writes the same, so each knows its own file.
            contents = f"{owner} {uuid.uuid4().hex}".encode()
            self._change(path, lambda: self._files.claim(path, contents))
        except FileExistsError:
            return False
        except CheckpointError:
            raise
        except Exception as error:
            raise self._failure("write", path, error) from shown_error(error)
        return True

    def read(self, ref: FileRef) -> pa.Buffer:
        """Read a file, and check that it is what was written.

        Parameters
        ----------
        ref : FileRef
            The file.

        Returns
        -------
        Buffer
            Its contents.

        Raises
        ------
        CheckpointCorrupt
            When it is missing or damaged.
        CheckpointError
            When the storage fails.
        """
        try:
            contents = self.read_unchecked(ref.path, ref.nbytes)
        except FileNotFoundError:
            raise CheckpointCorrupt(self.where(ref.path), f"{ref.nbytes:,} bytes", "no such file") from None
        ref.check(self.where(ref.path), contents)
        return contents

    def read_start(self, ref: FileRef, nbytes: int) -> pa.Buffer:
        """Read the beginning of a file, and check nothing but that the file exists.

        Parameters
        ----------
        ref : FileRef
            The file.
        nbytes : int
            How much to read, at most.

        Returns
        -------
        Buffer
            The beginning.

        Raises
        ------
        CheckpointCorrupt
            When there is no such file.
        CheckpointError
            When the storage fails.
        """
        try:
            return self._within(nbytes, lambda: self._files.read(ref.path, min(nbytes, ref.nbytes)))
        except FileNotFoundError:
            raise CheckpointCorrupt(self.where(ref.path), f"{ref.nbytes:,} bytes", "no such file") from None
        except CheckpointError:
            raise
        except Exception as error:
            raise self._failure("read", ref.path, error) from shown_error(error)

    def open(self, ref: FileRef) -> pa.NativeFile:
        """Check a file, and open it; a large one is not in memory as a whole: a remote one is copied to a local file.

        Parameters
        ----------
        ref : FileRef
            The file.

        Returns
        -------
        NativeFile
            At its beginning.

        Raises
        ------
        CheckpointCorrupt
            When it is missing or damaged.
        CheckpointError
            When the storage fails.
        """
        if ref.nbytes <= _PART_BYTES:
            return pa.BufferReader(self.read(ref))
        try:
            return self._within(ref.nbytes, lambda: self._opened(ref))
        except FileNotFoundError:
            raise CheckpointCorrupt(self.where(ref.path), f"{ref.nbytes:,} bytes", "no such file") from None
        except CheckpointError:
            raise
        except Exception as error:
            raise self._failure("read", ref.path, error) from shown_error(error)

    def _opened(self, ref: FileRef) -> pa.NativeFile:
        file = self._files.open(ref.path)
        ref.check_size(self.where(ref.path), file.size())
        measured = Measured(parts_of(file))
        for _ in measured:
            pass
        ref.check_checksum(self.where(ref.path), measured.checksum)
        file.seek(0)
        return file

    def read_unchecked(self, path: str, nbytes: int = 0) -> pa.Buffer:
        """Read a file that carries its own checksum; raise FileNotFoundError if there is none.

        Parameters
        ----------
        path : str
            The path within this folder.
        nbytes : int, optional
            Its size, for the deadline; a small file if left out.
        """
        try:
            return self._within(nbytes, lambda: self._files.read(path))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failure("read", path, error) from shown_error(error)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file directly in a folder, by name; empty if there is no such folder."""
        return self._attempt("list", folder, functools.partial(self._files.sizes, folder))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; empty if there is no such folder."""
        return self._attempt("list", folder, functools.partial(self._files.folders, folder))

    def make_durable(self, folder: str) -> None:
        """Make the files in a folder durable that can be read there, although storage may have reported a failure.

        A local disk may have a complete file of which a power failure removes the name.

        Parameters
        ----------
        folder : str
            The path within this folder.

        Raises
        ------
        CheckpointError
            When the storage fails.
        """
        self._attempt("sync", folder, functools.partial(self._files.sync, folder))

    def delete(self, path: str) -> None:
        """Delete a file; deleting it twice is no error."""
        self._attempt("delete", path, functools.partial(self._files.delete, path), changes=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if it is empty."""
        self._attempt("delete", folder, functools.partial(self._files.delete_folder, folder), changes=True)

    def _attempt(self, step: str, path: str, action: Callable[[], _Result], changes: bool = False) -> _Result:
        try:
            return self._change(path, action) if changes else self._within(0, action)
        except CheckpointError:
            raise
        except Exception as error:
            raise self._failure(step, path, error) from shown_error(error)

    def _within(self, nbytes: int, action: Callable[[], _Result]) -> _Result:
        return within(lambda: seconds_for(nbytes), action, self.shown)

    def _change(self, path: str, action: Callable[[], _Result]) -> _Result:
        return self._within(0, lambda: self._changes.make(self.where(path), action))

    def _failure(self, step: str, path: str, error: Exception) -> CheckpointError:
        where = self.where(path)
        if isinstance(error, FileExistsError):
            return CheckpointError(
                f"{where} exists already: another job, or an earlier scheduler of this job, writes checkpoints into "
                f"{self.shown}. Give each job a folder of its own, and stop the other one."
            )
        return CheckpointError(
            f"cannot {step} {where}: {type(error).__name__}: {shown_url(error)}. Check that the folder exists or can "
            "be created, that the scheduler and all workers may write to it, and that the storage has space."
        )


def parts_of(file: pa.NativeFile) -> Iterator[pa.Buffer]:
    """Yield what is left of a file in parts that fit in memory."""
    while part := file.read_buffer(_PART_BYTES):
        yield part

"""Writes batches to a series of Parquet files under hidden or otherwise unlisted names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.vocab.errors import SinkError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import shown_url

GROUP_ROWS = 131_072
GROUP_BYTES = 64 * 2**20
"""Rows and bytes at which a row group is written; a writer buffers at most that much in memory."""


class FinishedFile(NamedTuple):
    """A complete file on its storage: its path, and how large it is."""

    path: str
    rows: int
    nbytes: int


class RollingFiles:
    """Writes batches to Parquet files and begins a new one when the current one is full.

    Parameters
    ----------
    filesystem : FileSystem
        Where the files are written.
    path_of : callable
        Returns the path of the file with a number, from 0; called when the file is created.
    rows_per_file : int
        Largest number of rows in a file.
    compression : str
        The compression of the columns.
    where : str
        Names the sink and the job in errors.
    finished : callable
        Called with each `FinishedFile`.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        path_of: Callable[[int], str],
        rows_per_file: int,
        compression: str,
        where: str,
        finished: Callable[[FinishedFile], None],
    ):
        self._filesystem = filesystem
        self._path_of = path_of
        self._rows_per_file = rows_per_file
        self._compression = compression
        self._where = where
        self._finished = finished
        self._number = 0
        self._group: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0
        self._file_rows = 0
        self._path = ""
        self._stream: pa.NativeFile | None = None
        self._writer: Any = None
        self.schema: pa.Schema | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; the first batch sets the schema."""
        if self.schema is None:
            self.schema = plain_schema(rows.schema)
        rows = check_schema(self.schema, rows, self._where)
        while rows.num_rows:
            room = self._rows_per_file - self._file_rows
            self._take(rows.slice(0, room))
            rows = rows.slice(room)

    def finish(self) -> None:
        """Complete the current file, if it has rows."""
        if self._file_rows:
            self._finish_file()

    def abort(self) -> None:
        """Delete the current file."""
        self._group = []
        # Closing may fail again for the reason of the abort, such as a full disk; delete the file all the same.
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._stream is not None:
                self._stream.close()
        if self._stream is not None:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(self._path)
        self._writer = self._stream = None
        self._group_rows = self._group_bytes = self._file_rows = 0

    def write_group(self) -> None:
        """Write the buffered rows to the current file."""
        try:
            if self._writer is None:
                import pyarrow.parquet as pq

                self._path = self._path_of(self._number)
                _create(self._filesystem, self._path)
                self._stream = self._filesystem.open_output_stream(self._path)
                self._writer = pq.ParquetWriter(self._stream, self.schema, compression=self._compression)
            if self._group:
                table = pa.Table.from_batches(self._group, self.schema)
                self._writer.write_table(table, row_group_size=table.num_rows)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: {shown_url(f'cannot write {self._path}: {error}')}") from shown_error(
                error
            )
        self._group = []
        self._group_rows = self._group_bytes = 0

    def _take(self, rows: pa.RecordBatch) -> None:
        """Buffer rows that fit into the current file."""
        self._group.append(rows)
        self._group_rows += rows.num_rows
        self._group_bytes += rows.nbytes
        self._file_rows += rows.num_rows
        if self._file_rows >= self._rows_per_file:
            self._finish_file()
        elif self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self.write_group()

    def _finish_file(self) -> None:
        self.write_group()
        try:
            self._writer.close()
            nbytes = 0
            if self._stream is not None:
                nbytes = self._stream.tell()
                self._stream.close()
            if isinstance(self._filesystem, fs.LocalFileSystem):
                sync(self._path)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: {shown_url(f'cannot finish {self._path}: {error}')}") from shown_error(
                error
            )
        done = FinishedFile(self._path, self._file_rows, nbytes)
        self._writer = self._stream = None
        self._number += 1
        self._file_rows = 0
        self._finished(done)


def sync(path: str) -> None:
    """Sync a local file or directory to disk.

    Without it, a renamed file may be empty after a power failure, or its new name may be missing.

    Parameters
    ----------
    path : str
        The file or directory.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(filesystem: fs.FileSystem, path: str) -> None:
    """Create an empty file; PyArrow truncates existing files instead of refusing them.

    Raises
    ------
    FileExistsError
        If the path exists: another writer has it.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        Path(path).touch(exist_ok=False)
    elif filesystem.get_file_info(path).type is not fs.FileType.NotFound:
        raise FileExistsError(f"{path} exists already")

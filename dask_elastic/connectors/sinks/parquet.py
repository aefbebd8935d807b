"""A sink that writes Parquet files, each of which becomes visible only when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from dask_elastic.connectors.storage import full_path, locate
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError

Mode = Literal["error", "overwrite", "append"]
Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

GROUP_ROWS = 131_072
GROUP_BYTES = 64 * 2**20
"""Rows and bytes at which a row group is written; a writer buffers at most that much in memory."""

WRITTEN_HERE = re.compile(r"\.?part-.+-[0-9a-f]{12}-\d+-\d+-\d{5,}\.parquet(\.writing)?")


class Parquet(Sink):
    """Write Parquet files into a directory, with several writers at the same time.

    Each instance writes its own files, `part-{job}-{operator}-{run}-{node}-{instance}-{number}.parquet`. A file has a
    hidden name until it is complete, so readers never see a partial file. A file becomes visible when it is full; the
    last file of an instance becomes visible when the job ends. If the job fails or is stopped, full files stay and
    unfinished files are deleted.

    Parameters
    ----------
    directory : str or path
        Local path or URL of the directory, which is created if it does not exist. Use one directory per sink.
    rows_per_file : int, default 1_000_000
        Largest number of rows in a file.
    compression : str, default "zstd"
        One of zstd, snappy, gzip, brotli, lz4, none.
    mode : {"error", "overwrite", "append"}, default "error"
        What to do if the directory already holds Parquet files. "error": fail. "overwrite": delete the files that a
        `sinks.Parquet` wrote, and fail if there are others. "append": keep them and write new files beside them.
    storage_options : mapping, optional
        Options for fsspec.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    The writers of a job open the directory at different times and do not communicate. File names therefore carry a
    random identifier of the run, which all writers share and which is new each time a job is submitted. A writer
    ignores files with the identifier of its own run, because another writer of this sink wrote them; it treats all
    other files as existing before. A writer that opens late thus never deletes a file of one that opened early, and a
    writer of an earlier run that hung and continues never touches a file of a later run.

    Examples
    --------
    >>> Parquet("/data/planes", mode="append")
    Parquet('/data/planes', mode='append')
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        rows_per_file: int = 1_000_000,
        compression: Compression = "zstd",
        mode: Mode = "error",
        storage_options: Mapping[str, Any] | None = None,
    ):
        if not isinstance(directory, str | os.PathLike):
            raise TopologyError(f"sinks.Parquet takes the path of a directory, not {directory!r}.")
        if not isinstance(rows_per_file, int) or rows_per_file < 1:
            raise TopologyError(f"sinks.Parquet: rows_per_file is {rows_per_file!r}; give 1 or more.")
        if compression not in get_args(Compression):
            raise TopologyError(_one_of("compression", compression, get_args(Compression)))
        if mode not in get_args(Mode):
            raise TopologyError(_one_of("mode", mode, get_args(Mode)))
        self.directory = full_path(directory)
        self.rows_per_file = rows_per_file
        self.compression = compression
        self.mode = mode
        self.storage_options = None if storage_options is None else dict(storage_options)

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        return f"Parquet({self.directory!r}, mode={self.mode!r})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Prepare the directory as the mode demands and return a writer.

        Parameters
        ----------
        context : SinkContext
            The job, operator, run, node and instance, which become part of the file names. Without a run, each
            opening is a run of its own.

        Returns
        -------
        SinkWriter
            The writer of this instance's files.

        Raises
        ------
        SinkError
            When the directory cannot be created or listed, or holds files that the mode does not allow.
        """
        where = f"sink {context.operator!r} of job {context.job!r}, directory {self.directory}"
        run = context.run or uuid.uuid4().hex[:12]
        siblings = f"part-{quote(context.job, safe='')}-{quote(context.operator, safe='')}-{run}-"
        try:
            filesystem, root = locate(self.directory, self.storage_options)
            filesystem.create_dir(root, recursive=True)
            listed = [info.base_name for info in filesystem.get_file_info(fs.FileSelector(root))]
            names = [name for name in listed if name.endswith((".parquet", ".parquet.writing"))]
            old = [name for name in names if not name.removeprefix(".").startswith(siblings)]
            self._prepare(filesystem, root, old, where)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise SinkError(f"{where}: cannot be opened: {error}") from error
        own = f"{siblings}{context.node}-{context.instance}-"
        return _Writer(filesystem, f"{root}/", own, self.rows_per_file, self.compression, where)

    def _prepare(self, filesystem: fs.FileSystem, root: str, old: list[str], where: str) -> None:
        """Refuse or delete existing files as the mode demands."""
        visible = [name for name in old if not name.startswith(".")]
        foreign = [name for name in visible if not WRITTEN_HERE.fullmatch(name)]
        if self.mode == "error" and visible:
            raise SinkError(
                f"{where}: the directory already holds {len(visible)} Parquet files, such as {min(visible)}. Choose "
                'another directory, or set mode="overwrite" or mode="append".'
            )
        if self.mode == "overwrite":
            if foreign:
                raise SinkError(
                    f'{where}: {min(foreign)} was not written by sinks.Parquet, so mode="overwrite" does not delete '
                    'it. Remove it, choose another directory, or set mode="append".'
                )
            for name in old:
                if WRITTEN_HERE.fullmatch(name):
                    # All writers of the job clear the directory concurrently: another may have deleted the file.
                    with contextlib.suppress(FileNotFoundError):
                        filesystem.delete_file(f"{root}/{name}")


class _Writer(SinkWriter):
    def __init__(
        self,
        filesystem: fs.FileSystem,
        directory: str,
        prefix: str,
        rows_per_file: int,
        compression: str,
        where: str,
    ):
        self._filesystem = filesystem
        self._directory = directory
        self._prefix = prefix
        self._number = 0
        self._rows_per_file = rows_per_file
        self._compression = compression
        self._where = where
        self._schema: pa.Schema | None = None
        self._group: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0
        self._file_rows = 0
        self._stream: pa.NativeFile | None = None
        self._writer: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        if self._schema is None:
            self._schema = plain_schema(rows.schema)
        rows = check_schema(self._schema, rows, self._where)
        while rows.num_rows:
            room = self._rows_per_file - self._file_rows
            self._take(rows.slice(0, room))
            rows = rows.slice(room)

    def close(self) -> None:
        if self._file_rows:
            self._finish_file()

    def abort(self) -> None:
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
                self._filesystem.delete_file(self._hidden)
        self._writer = self._stream = None
        self._file_rows = 0

    @property
    def _visible(self) -> str:
        return f"{self._directory}{self._prefix}{self._number:05d}.parquet"

    @property
    def _hidden(self) -> str:
        return f"{self._directory}.{self._prefix}{self._number:05d}.parquet.writing"

    def _take(self, rows: pa.RecordBatch) -> None:
        """Buffer rows that fit into the current file."""
        self._group.append(rows)
        self._group_rows += rows.num_rows
        self._group_bytes += rows.nbytes
        self._file_rows += rows.num_rows
        if self._file_rows >= self._rows_per_file:
            self._finish_file()
        elif self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        try:
            if self._writer is None:
                import pyarrow.parquet as pq

                _create(self._filesystem, self._hidden)
                self._stream = self._filesystem.open_output_stream(self._hidden)
                self._writer = pq.ParquetWriter(self._stream, self._schema, compression=self._compression)
            if self._group:
                table = pa.Table.from_batches(self._group, self._schema)
                self._writer.write_table(table, row_group_size=table.num_rows)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: cannot write {self._hidden}: {error}") from error
        self._group = []
        self._group_rows = self._group_bytes = 0

    def _finish_file(self) -> None:
        self._write_group()
        try:
            self._writer.close()
            if self._stream is not None:
                self._stream.close()
            if isinstance(self._filesystem, fs.LocalFileSystem):
                _to_disk(self._hidden)
            self._filesystem.move(self._hidden, self._visible)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: cannot finish {self._visible}: {error}") from error
        self._writer = self._stream = None
        self._number += 1
        self._file_rows = 0


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


def _to_disk(path: str) -> None:
    """Sync the file to disk; without it, a renamed file may be empty after a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _one_of(option: str, value: object, allowed: tuple[str, ...]) -> str:
    return f"sinks.Parquet: {option} is {value!r}; give one of {', '.join(allowed)}."

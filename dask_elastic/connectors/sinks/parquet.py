"""A sink that writes Parquet files, each of which becomes visible only when it is complete."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from dask_elastic.connectors.sinks.former_place import explained_place
from dask_elastic.connectors.sinks.rolling_files import FinishedFile, RollingFiles, sync
from dask_elastic.connectors.storage import full_path, locate
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import shown_url

Mode = Literal["error", "overwrite", "append"]
Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]

WRITTEN_HERE = re.compile(r"\.?part-.+-[0-9a-f]{12}(-g\d+-c\d+)?-\d+-\d+-\d{5,}\.parquet(\.writing)?")

MISSING = "%s: the prepared file %s does not exist. Unless another program has taken it since, its rows are lost."

logger = logging.getLogger("dask_elastic.sinks")


class ParquetTransaction(NamedTuple):
    """The handle of a prepared transaction: the directory, and the visible names of its files."""

    directory: str
    names: tuple[str, ...]


class Parquet(Sink):
    """Write Parquet files into a directory, with several writers at the same time.

    Each instance writes its own files, `part-{job}-{operator}-{run}-{node}-{instance}-{number}.parquet`. A file has a
    hidden name until it is complete, so readers never see a partial file. A file becomes visible when it is full; the
    last file of an instance becomes visible when the job ends. If the job fails or is stopped, full files stay and
    unfinished files are deleted.

    In a job with checkpoints, files become visible when the checkpoint after their rows is complete, so that each row
    is in one visible file, whatever fails. Each interval then has a file of its own per instance. If such a job fails
    or is stopped, files that belong to its last checkpoint may stay hidden until it is resumed.

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

    With checkpoints, names also contain the generation and the number of the last checkpoint before the file, as in
    `part-{job}-{operator}-{run}-g{generation}-c{checkpoint}-{node}-{instance}-{number}.parquet`. A restart deletes
    hidden files of rows that are replayed. A file that a hung writer of an earlier generation leaves later stays
    hidden.

    Examples
    --------
    >>> Parquet("/data/planes", mode="append")
    Parquet('/data/planes', mode='append')
    """

    promise = "exactly-once"

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
        return f"Parquet({shown_url(self.directory)!r}, mode={self.mode!r})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Create or clear the directory as the mode demands and return a writer; a restarted job leaves it as it is.

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
        where = f"sink {context.operator!r} of job {context.job!r}, directory {shown_url(self.directory)}"
        run = context.run or uuid.uuid4().hex[:12]
        of_run = f"{quote(context.operator, safe='')}-{run}"
        siblings = f"part-{quote(context.job, safe='')}-{of_run}-"
        try:
            filesystem, root = locate(self.directory, self.storage_options)
            filesystem.create_dir(root, recursive=True)
            listed = [info.base_name for info in filesystem.get_file_info(fs.FileSelector(root))]
            names = [name for name in listed if name.endswith((".parquet", ".parquet.writing"))]
            old = [name for name in names if not name.removeprefix(".").startswith(siblings)]
            if not context.restored:
                self._apply_mode(filesystem, root, old, where)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise SinkError(f"{where}: cannot be opened: {shown_url(error)}") from shown_error(error)
        return _Writer(self, _Directory(filesystem, f"{root}/", where), siblings, of_run, context)

    def _apply_mode(self, filesystem: fs.FileSystem, root: str, old: list[str], where: str) -> None:
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
    """Writes the files of one instance.

    With checkpoints, the name of a file contains the generation of its writer and the number of the checkpoint that the
    writer prepared last. Every sink takes part in every complete checkpoint, so the rows of a file belong to the newest
    complete checkpoint or to an earlier one if that number is lower, and to an incomplete one if not.
    """

    def __init__(self, sink: Parquet, directory: _Directory, siblings: str, of_run: str, context: SinkContext):
        self._sink = sink
        self._directory = directory
        self._siblings = siblings
        self._of_run = of_run
        self._context = context
        self._checkpoint = 0
        # Files that are complete and not prepared yet.
        self._finished: list[str] = []
        self._files = RollingFiles(
            directory.filesystem,
            self._hidden_path,
            sink.rows_per_file,
            sink.compression,
            directory.where,
            finished=self._file_finished,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._files.write(rows)

    def close(self) -> None:
        self._files.finish()
        self._directory.show(self._finished)
        self._finished = []

    def abort(self) -> None:
        self._files.abort()
        for name in self._finished:
            self._directory.delete(_hidden(name))
        self._finished = []

    def prepare(self, checkpoint: int) -> object | None:
        self._files.finish()
        prepared, self._finished = tuple(self._finished), []
        self._checkpoint = checkpoint
        if not prepared:
            return None
        self._directory.sync()
        return ParquetTransaction(self._sink.directory, prepared)

    def commit(self, prepared: object) -> None:
        if not isinstance(prepared, tuple):
            raise SinkError(f"{self._directory.where}: {prepared!r} is not a transaction of sinks.Parquet.")
        # Handles of earlier versions are the names alone.
        former, names = prepared if isinstance(prepared, ParquetTransaction) else ("", prepared)
        left = self._directory.show_prepared(names)
        if left and former not in ("", self._sink.directory):
            # The job was resumed with another directory.
            with explained_place(self._context.operator):
                left = self._former(former).show_prepared(left)
        for name in left:
            # A reader may have moved it away after an earlier commit: that must not prevent a restart.
            logger.warning(MISSING, self._directory.where, f"{shown_url(former or self._sink.directory)}/{name}")

    def _former(self, url: str) -> _Directory:
        where = f"{self._directory.where}, before {shown_url(url)}"
        try:
            filesystem, root = locate(url, self._sink.storage_options)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise SinkError(f"{where}: cannot be opened: {shown_url(error)}") from shown_error(error)
        return _Directory(filesystem, f"{root}/", where)

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        super().recover(prepared, checkpoint)
        self._checkpoint = checkpoint
        # The run identifies the job, which may have been resumed under another name.
        own = re.compile(rf"\.part-.+-{re.escape(self._of_run)}-g(\d+)-c(\d+)-\d+-\d+-\d+\.parquet\.writing")
        for name in self._directory.names():
            found = own.fullmatch(name)
            if found and int(found[1]) < self._context.generation and int(found[2]) >= checkpoint:
                self._directory.delete(name)

    def _hidden_path(self, number: int) -> str:
        context = self._context
        restart = f"g{context.generation}-c{self._checkpoint}-" if context.checkpoints else ""
        name = f"{self._siblings}{restart}{context.node}-{context.instance}-{number:05d}.parquet"
        return f"{self._directory.path}{_hidden(name)}"

    def _file_finished(self, file: FinishedFile) -> None:
        name = _visible(file.path.rpartition("/")[2])
        if self._context.checkpoints:
            self._finished.append(name)
        else:
            self._directory.show([name])


class _Directory:
    """The directory of a sink, whose files have hidden names until they are shown."""

    def __init__(self, filesystem: fs.FileSystem, path: str, where: str):
        self.filesystem = filesystem
        self.path = path
        self.where = where

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [info.base_name for info in self.filesystem.get_file_info(fs.FileSelector(self.path))]

    def show(self, names: Sequence[str]) -> None:
        """Rename files to their visible names."""
        for name in names:
            self._show(name)
        if names:
            self.sync()

    def show_prepared(self, names: Sequence[str]) -> list[str]:
        """Rename files, which may have their visible names already; return those that do not exist."""
        missing = [name for name in names if not self._show_once(name)]
        if len(missing) < len(names):
            # The writer that has renamed them may have been lost before it synced.
            self.sync()
        return missing

    def _show_once(self, name: str) -> bool:
        """Rename a file, unless it has its visible name already; returns whether it exists."""
        if self._is_missing(_hidden(name)):
            return not self._is_missing(name)
        try:
            self._show(name)
        except SinkError:
            # A call of the generation before may still run, and have renamed it since.
            if not self._is_missing(_hidden(name)) or self._is_missing(name):
                raise
        return True

    def _show(self, name: str) -> None:
        try:
            self.filesystem.move(self.path + _hidden(name), self.path + name)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self.where}: {shown_url(f'cannot finish {self.path}{name}: {error}')}") from shown_error(
                error
            )

    def _is_missing(self, name: str) -> bool:
        try:
            return bool(self.filesystem.get_file_info(self.path + name).type is fs.FileType.NotFound)
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{self.where}: {shown_url(f'cannot find {self.path}{name}: {error}')}") from shown_error(
                error
            )

    def sync(self) -> None:
        """Make the names of the files durable, where they are on a local disk."""
        if isinstance(self.filesystem, fs.LocalFileSystem):
            try:
                sync(self.path)
            except OSError as error:
                raise SinkError(f"{self.where}: cannot be synced to disk: {error}") from error

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path + name)


def _hidden(name: str) -> str:
    return f".{name}.writing"


def _visible(hidden: str) -> str:
    return hidden.removeprefix(".").removesuffix(".writing")


def _one_of(option: str, value: object, allowed: tuple[str, ...]) -> str:
    return f"sinks.Parquet: {option} is {value!r}; give one of {', '.join(allowed)}."

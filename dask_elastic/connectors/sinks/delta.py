"""A sink that appends to a Delta table, with one transaction per instance and checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyarrow import fs

from dask_elastic.connectors.libraries import lacking
from dask_elastic.connectors.sinks.delta_table import AddedFile, DeltaFolder, DeltaTransaction
from dask_elastic.connectors.sinks.former_place import explained_place
from dask_elastic.connectors.sinks.rolling_files import FinishedFile, RollingFiles
from dask_elastic.connectors.storage import full_path
from dask_elastic.topology.casting import cast_rows
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError
from dask_elastic.vocab.text.shown_url import shown_url


class Delta(Sink):
    """Append rows to a Delta table, with several writers at the same time; needs the extra `delta`.

    The table is created with the schema of the first rows if it does not exist. Rows are cast to the types of the
    table where that changes no value. Data files are written below the table's root, and a commit adds them to its
    log. In a job with checkpoints this happens when the checkpoint after the rows is complete, with an application
    transaction, so that each row is added once, whatever fails. Otherwise a file is added when it is full, and the last
    one when the job ends.

    Parameters
    ----------
    table : str or path
        Local path or URL of the table.
    rows_per_file : int, default 1_000_000
        Largest number of rows in a file.
    storage_options : mapping, optional
        Options of the library `deltalake` for the storage.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    The transaction has the identifier `dask_elastic-{digest}-{instance}`, where the digest is one of operator and run,
    and the number of the checkpoint as version. Restarts delete files of rows that are replayed. `vacuum` deletes
    files that are not in the log once they are older than its retention: keep this longer than the time for which a
    job with checkpoints may be down.

    Partitioned tables, and those with constraints or mapped columns, are refused.

    Examples
    --------
    >>> Delta("/data/delays", rows_per_file=100_000)
    Delta('/data/delays')
    """

    promise = "exactly-once"

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        rows_per_file: int = 1_000_000,
        storage_options: Mapping[str, str] | None = None,
    ):
        if not isinstance(table, str | os.PathLike):
            raise TopologyError(f"sinks.Delta takes the path or URL of a table, not {table!r}.")
        if not isinstance(rows_per_file, int) or isinstance(rows_per_file, bool) or rows_per_file < 1:
            raise TopologyError(f"sinks.Delta: rows_per_file is {rows_per_file!r}; give 1 or more.")
        self.table = full_path(table)
        self.rows_per_file = rows_per_file
        self.storage_options = None if storage_options is None else dict(storage_options)

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        return f"Delta({shown_url(self.table)!r})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer; the table is opened or created with the first rows.

        Parameters
        ----------
        context : SinkContext
            The job, operator, run, generation and instance, which become part of names of files and transactions.

        Returns
        -------
        SinkWriter
            The writer of this instance's files.

        Raises
        ------
        SinkError
            When the library `deltalake` is missing or too old, or the storage cannot be opened.
        """
        where = f"sink {context.operator!r} of job {context.job!r}, table {shown_url(self.table)}"
        lack = lacking("deltalake", "deltalake", "delta")
        if lack is not None:
            raise SinkError(f"{where}: {lack}")
        folder = DeltaFolder(self.table, self.storage_options, where)
        return _Writer(folder, self.table, context, self.rows_per_file, where)


class _Writer(SinkWriter):
    def __init__(self, folder: DeltaFolder, table: str, context: SinkContext, rows_per_file: int, where: str):
        self._folder = folder
        self._table = table
        self._context = context
        self._where = where
        run = context.run or uuid.uuid4().hex
        # Without the name of the job, which may be resumed under another one.
        self._digest = _digest(context.operator, run)
        self._former_digest = _digest(context.job, context.operator, run)
        self._schema: pa.Schema | None = None
        self._checkpoint = 0
        # Files that are complete and not prepared yet.
        self._finished: list[AddedFile] = []
        self._files = RollingFiles(folder.filesystem, self._path_of, rows_per_file, "zstd", where, self._file_finished)

    def write(self, rows: pa.RecordBatch) -> None:
        if self._schema is None:
            self._schema = self._folder.schema(rows.schema)
        self._files.write(cast_rows(self._schema, rows, self._where))

    def close(self) -> None:
        self._files.finish()
        if self._finished:
            self._folder.append(self._finished)
        self._finished = []

    def abort(self) -> None:
        self._files.abort()
        for file in self._finished:
            self._delete(file.path)
        self._finished = []

    def prepare(self, checkpoint: int) -> object | None:
        self._files.finish()
        files, self._finished = tuple(self._finished), []
        self._checkpoint = checkpoint
        writer = f"dask_elastic-{self._digest}-{self._context.instance}"
        return DeltaTransaction(writer, checkpoint, files, self._table) if files else None

    def commit(self, prepared: object) -> None:
        if not isinstance(prepared, DeltaTransaction):
            raise SinkError(f"{self._where}: {prepared!r} is not a transaction of sinks.Delta.")
        if prepared.table in ("", self._table):
            self._folder.commit(prepared)
            return
        # The job was resumed with another table.
        with explained_place(self._context.operator):
            self._folder.of(prepared).commit(prepared)

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        super().recover(prepared, checkpoint)
        self._checkpoint = checkpoint
        # Earlier versions had the name of the job in the names.
        own = re.compile(rf"part-(?:{self._digest}|{self._former_digest})-g(\d+)-c(\d+)-\d+-\d+\.parquet")
        selector = fs.FileSelector(self._folder.root, allow_not_found=True)
        left = []
        for info in self._folder.filesystem.get_file_info(selector):
            found = own.fullmatch(info.base_name)
            if found and int(found[1]) < self._context.generation and int(found[2]) >= checkpoint:
                left.append(info.base_name)
        # A job that continues from an earlier checkpoint than its newest one finds files that the table has.
        committed = self._folder.files() if left else set()
        for name in left:
            if name not in committed:
                self._delete(name)

    def _path_of(self, number: int) -> str:
        # As in sinks.Parquet: files with the number of the newest complete checkpoint or more belong to an incomplete
        # one.
        context = self._context
        name = f"part-{self._digest}-g{context.generation}-c{self._checkpoint}-{context.instance}-{number:05d}.parquet"
        self._folder.filesystem.create_dir(self._folder.root or ".", recursive=True)
        return f"{self._folder.root}{name}"

    def _file_finished(self, file: FinishedFile) -> None:
        self._finished.append(AddedFile(file.path.removeprefix(self._folder.root), file.rows, file.nbytes))
        if not self._context.checkpoints:
            self._folder.append(self._finished)
            self._finished = []

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folder.filesystem.delete_file(f"{self._folder.root}{path}")


def _digest(*names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()

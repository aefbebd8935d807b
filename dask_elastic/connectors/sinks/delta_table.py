"""Commits finished files to a Delta table, each transaction once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from dask_elastic.connectors.storage import locate
from dask_elastic.vocab.errors import SinkError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import shown_url

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

REFUSED = ("delta.columnMapping.mode", "delta.constraints.", "delta.generationExpression")
"""Properties of tables whose files other than Delta's own writers must not add."""

ATTEMPTS = 5
"""How often a transaction is tried while writers that hung commit the same one."""


class AddedFile(NamedTuple):
    """A finished file below the root of the table."""

    path: str
    rows: int
    nbytes: int


class DeltaTransaction(NamedTuple):
    """The handle of a prepared transaction.

    Parameters
    ----------
    writer : str
        The writer's identifier.
    checkpoint : int
        The number of its checkpoint.
    files : tuple of AddedFile
        The files.
    table : str
        The table; empty in handles of earlier versions.
    """

    writer: str
    checkpoint: int
    files: tuple[AddedFile, ...]
    table: str = ""


class DeltaFolder:
    """A Delta table at a path or URL, and the file system below its root.

    Parameters
    ----------
    path : str
        An absolute local path or a URL.
    options : mapping or None
        Options of the library `deltalake` for the storage.
    where : str
        Names the sink and the job in errors.
    """

    def __init__(self, path: str, options: Mapping[str, str] | None, where: str):
        self._path = path
        self._options = None if options is None else dict(options)
        self._where = where
        self._loaded: DeltaTable | None = None
        if is_local(path):
            self.filesystem, root = locate(path)
            self.root = f"{root}/"
        else:
            from deltalake.exceptions import DeltaError
            from deltalake.fs import DeltaStorageHandler

            try:
                self.filesystem = fs.PyFileSystem(DeltaStorageHandler(path, self._options))
            except (DeltaError, OSError, ValueError) as error:
                raise SinkError(f"{where}: cannot be opened: {shown_url(error)}") from shown_error(error)
            self.root = ""

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the schema of the table, which is created with that of some rows if it does not exist.

        Raises
        ------
        SinkError
            When the table cannot be created, or files must not be added to it without Delta's own checks.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if not DeltaTable.is_deltatable(self._path, self._options):
                self._create(rows)
            table = self._table()
            metadata = table.metadata()
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: cannot be opened: {shown_url(error)}") from shown_error(error)
        if metadata.partition_columns:
            raise SinkError(
                f"{self._where}: the table is partitioned by {', '.join(metadata.partition_columns)}. sinks.Delta "
                "writes tables without partitions; write to another one."
            )
        refused = [
            name for name, value in metadata.configuration.items() if name.startswith(REFUSED) and value != "none"
        ]
        if refused:
            raise SinkError(
                f"{self._where}: the table has the property {refused[0]}, which sinks.Delta does not support. Write "
                "to a table without it."
            )
        return pa.schema(table.schema().to_arrow())

    def commit(self, transaction: DeltaTransaction) -> None:
        """Add the files of a transaction; one that was added before is left alone.

        Raises
        ------
        SinkError
            When the table cannot be written.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        properties = CommitProperties(app_transactions=[Transaction(transaction.writer, transaction.checkpoint)])
        for attempt in range(ATTEMPTS):
            try:
                table = self._table()
                if _is_committed(table, transaction):
                    return
                self._add(table, transaction.files, properties)
                return
            except (DeltaError, OSError, ValueError) as error:
                # Another writer may have committed the same transaction meanwhile: the next attempt sees it.
                if attempt + 1 == ATTEMPTS:
                    raise SinkError(f"{self._where}: cannot be committed: {shown_url(error)}") from shown_error(error)

    def of(self, transaction: DeltaTransaction) -> DeltaFolder:
        """Return where a transaction is committed: here, or at the table that the sink had before the job was resumed.

        Raises
        ------
        SinkError
            When the former table cannot be opened.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if transaction.table in ("", self._path):
            return self
        try:
            # The table may have been moved, with its log and its files.
            here = DeltaTable.is_deltatable(self._path, self._options) and (
                _is_committed(self._table(), transaction)
                or self.filesystem.get_file_info(self.root + transaction.files[0].path).type is fs.FileType.File
            )
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: cannot be opened: {shown_url(error)}") from shown_error(error)
        where = f"{self._where}, before {shown_url(transaction.table)}"
        return self if here else DeltaFolder(transaction.table, self._options, where)

    def files(self) -> set[str]:
        """Return the files that the table has, relative to its root; none if there is no table.

        Raises
        ------
        SinkError
            When the table cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if not DeltaTable.is_deltatable(self._path, self._options):
                return set()
            return set(pa.table(self._table().get_add_actions(flatten=True))["path"].to_pylist())
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise SinkError(f"{self._where}: cannot be opened: {shown_url(error)}") from shown_error(error)

    def append(self, files: Sequence[AddedFile]) -> None:
        """Add files without a transaction that could be repeated.

        Raises
        ------
        SinkError
            When the table cannot be written.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import DeltaError

        try:
            self._add(self._table(), files, CommitProperties())
        except (DeltaError, OSError, ValueError) as error:
            raise SinkError(f"{self._where}: cannot be committed: {shown_url(error)}") from shown_error(error)

    def _create(self, rows: pa.Schema) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable.create(self._path, rows, mode="ignore", storage_options=self._options)
        except DeltaError:
            # All writers of the job begin at the same time: another one may have created it.
            if not DeltaTable.is_deltatable(self._path, self._options):
                raise

    def _table(self) -> DeltaTable:
        """Return the newest version of the table; the log is read from the beginning only once."""
        from deltalake import DeltaTable

        if self._loaded is None:
            self._loaded = DeltaTable(self._path, storage_options=self._options)
        else:
            self._loaded.update_incremental()
        return self._loaded

    def _add(self, table: DeltaTable, files: Sequence[AddedFile], properties: Any) -> None:
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.nbytes, {}, now, True, json.dumps({"numRecords": file.rows})) for file in files
        ]
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)


def _is_committed(table: DeltaTable, transaction: DeltaTransaction) -> bool:
    newest = table.transaction_version(transaction.writer)
    return newest is not None and newest >= transaction.checkpoint


def is_local(path: str) -> bool:
    """Return whether files can be written with the operating system's calls, which can be synced to disk."""
    return "://" not in path or path.startswith("file://")

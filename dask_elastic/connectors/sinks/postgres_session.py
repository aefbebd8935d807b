"""The statements of a Postgres sink's writer, on one connection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa

from dask_elastic.connectors.sinks.former_place import way_out
from dask_elastic.vocab.errors import SinkError
from dask_elastic.vocab.text.shown_error import shown_error
from dask_elastic.vocab.text.shown_url import shown_url

COMMITS = "dask_elastic_commits"
INCOMING = "dask_elastic_incoming"
"""The temporary table into which rows are copied; each connection has its own."""

ORDER = "dask_elastic_order"
"""The column of the temporary table with the order of the rows, by which the last one of a key is found."""


class PostgresTransaction(NamedTuple):
    """The handle of a prepared transaction.

    Parameters
    ----------
    job, run, sink : str
        Who wrote it.
    instance : int
        The instance of the sink.
    checkpoint : int
        The number of its checkpoint.
    staging : str
        The staging table with its rows.
    table : str
        The table beside which that is; empty in handles of earlier versions.
    """

    job: str
    run: str
    sink: str
    instance: int
    checkpoint: int
    staging: str
    table: str = ""


class PostgresSession:
    """A connection that stages rows and moves them to their table.

    Parameters
    ----------
    uri : str
        The connection string of libpq.
    table : str
        The table, with its schema if it has one.
    key : tuple of str
        The columns by which rows replace earlier ones; empty to append.
    where : str
        Names the sink and the job in errors.
    """

    def __init__(self, uri: str, table: str, key: tuple[str, ...], where: str):
        import adbc_driver_manager
        import adbc_driver_postgresql.dbapi as driver

        self._error = adbc_driver_manager.Error
        self._where = where
        self._table = qualified(table)
        self._schema = _schema(table)
        self._key = key
        self._order = 0
        self._columns = ""
        with self._explained("cannot connect"):
            self._connection = driver.connect(uri)

    def copy(self, rows: pa.RecordBatch) -> None:
        """Copy rows to the temporary table of the connection; the first ones set its columns."""
        first = not self._columns
        names = rows.schema.names
        if self._key:
            order = pa.array(range(self._order, self._order + rows.num_rows), pa.int64())
            rows = rows.append_column(ORDER, order)
            self._order += rows.num_rows
        with self._transaction("cannot write rows") as cursor:
            cursor.adbc_ingest(INCOMING, rows, mode="create" if first else "append", temporary=True)
        if first:
            self._columns = ", ".join(quoted(name) for name in names)
            self._create_table()

    def stage(self, transaction: PostgresTransaction) -> None:
        """Move the copied rows to the staging table of a transaction.

        Values that do not fit the types or constraints of the table fail here, before the checkpoint is complete.
        """
        with self._transaction("cannot prepare rows") as cursor:
            staging = _beside(transaction.staging, self._schema)
            cursor.execute(f"CREATE TABLE {staging} (LIKE {self._table} INCLUDING CONSTRAINTS)")
            cursor.execute(f"INSERT INTO {staging} ({self._columns}) {self._incoming()}")
            cursor.execute(f"TRUNCATE {INCOMING}")

    def insert(self) -> None:
        """Move the copied rows to the table at once, for a job without checkpoints."""
        with self._transaction("cannot write rows") as cursor:
            cursor.execute(f"INSERT INTO {self._table} ({self._columns}) {self._incoming()} {self._on_conflict()}")
            cursor.execute(f"TRUNCATE {INCOMING}")

    def commit(self, transaction: PostgresTransaction) -> None:
        """Move the rows of a transaction to its table and record it; a recorded one is left alone.

        It is another table than that of the session if the job was resumed with another one since, and that of the
        session if the former one was renamed to it.
        """
        former = transaction.table
        schema = _schema(former) if former else self._schema
        commits, staging = _beside(COMMITS, schema), _beside(transaction.staging, schema)
        self._create_commits(commits)
        with self._transaction("cannot commit") as cursor:
            cursor.execute(
                f"INSERT INTO {commits} AS known VALUES ($1, $2, $3, $4, $5) "
                "ON CONFLICT (job, run, sink, instance) DO UPDATE SET checkpoint = EXCLUDED.checkpoint "
                "WHERE known.checkpoint < EXCLUDED.checkpoint RETURNING checkpoint",
                transaction[:5],
            )
            if cursor.fetchall():
                if not _exists(cursor, staging):
                    raise SinkError(
                        f"{self._where}: cannot commit: the database has no staging table {staging}, in which rows are "
                        f"prepared. If the sink had another uri= before, or another user's default schema, resume with "
                        f"that one. {way_out(transaction.sink)}"
                    )
                columns = self._staged_columns(cursor, staging)
                conflict = self._on_conflict(columns)
                listed = ", ".join(quoted(name) for name in columns)
                table = qualified(former) if former and _exists(cursor, qualified(former)) else self._table
                cursor.execute(f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {staging} {conflict}")
            cursor.execute(f"DROP TABLE IF EXISTS {staging}")

    def sweep(self, prefix: str, generation: int, checkpoint: int) -> None:
        """Drop staging tables of earlier generations for checkpoints after the newest complete one."""
        name = re.compile(rf"{re.escape(prefix)}_g(\d+)_c(\d+)_i\d+")
        with self._transaction("cannot list staging tables") as cursor:
            cursor.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = coalesce($1, current_schema()) "
                "AND starts_with(tablename, $2)",
                (self._schema, prefix),
            )
            found = [match for (table,) in cursor.fetchall() if (match := name.fullmatch(table))]
        for match in found:
            if int(match[1]) < generation and int(match[2]) > checkpoint:
                with self._transaction("cannot drop a staging table") as cursor:
                    cursor.execute(f"DROP TABLE IF EXISTS {_beside(match[0], self._schema)}")

    def close(self) -> None:
        """Close the connection; rows in its temporary table are dropped."""
        # It may be broken; what was committed is not affected.
        with suppress(self._error):
            self._connection.close()

    def _incoming(self) -> str:
        """Return the query of the copied rows; with a key, of the last row of each."""
        if not self._key:
            return f"SELECT {self._columns} FROM {INCOMING}"
        key = ", ".join(quoted(name) for name in self._key)
        return f"SELECT DISTINCT ON ({key}) {self._columns} FROM {INCOMING} ORDER BY {key}, {ORDER} DESC"

    def _on_conflict(self, columns: Sequence[str] = ()) -> str:
        if not self._key:
            return ""
        names = [quoted(name) for name in columns] or self._columns.split(", ")
        key = [quoted(name) for name in self._key]
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name not in key)
        return f"ON CONFLICT ({', '.join(key)}) DO " + (f"UPDATE SET {changes}" if changes else "NOTHING")

    def _staged_columns(self, cursor: Any, staging: str) -> list[str]:
        cursor.execute(f"SELECT * FROM {staging} LIMIT 0")
        return [column[0] for column in cursor.description]

    def _create_table(self) -> None:
        key = ", ".join(quoted(name) for name in self._key)
        columns = self._columns
        with self._transaction("cannot create the table") as cursor:
            # Writers that create a table at the same time can fail, even with IF NOT EXISTS.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext($1))", (self._table,))
            if not _exists(cursor, self._table):
                cursor.execute(f"CREATE TABLE {self._table} AS SELECT {columns} FROM {INCOMING} LIMIT 0")
                if key:
                    cursor.execute(f"ALTER TABLE {self._table} ADD PRIMARY KEY ({key})")

    def _create_commits(self, commits: str) -> None:
        with self._transaction("cannot create the table of commits") as cursor:
            if not _exists(cursor, commits):
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext($1))", (COMMITS,))
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS {commits} (job text, run text, sink text, instance bigint, "
                    "checkpoint bigint, PRIMARY KEY (job, run, sink, instance))"
                )

    @contextmanager
    def _transaction(self, what: str) -> Iterator[Any]:
        """Commit what the block does, or roll it back if it raises."""
        with self._explained(what), self._connection.cursor() as cursor:
            try:
                yield cursor
                self._connection.commit()
            except (self._error, SinkError):
                self._connection.rollback()
                raise

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise SinkError(f"{self._where}: {what}: {shown_url(error)}") from shown_error(error)


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _exists(cursor: Any, table: str) -> bool:
    cursor.execute("SELECT to_regclass($1)::text", (table,))
    return cursor.fetchall()[0][0] is not None


def _schema(table: str) -> str | None:
    return table.partition(".")[0] if "." in table else None


def _beside(table: str, schema: str | None) -> str:
    """Return the name of a table in the schema of another one, as SQL writes it."""
    return quoted(table) if schema is None else f"{quoted(schema)}.{quoted(table)}"


def qualified(table: str) -> str:
    """Return the name of a table, with its schema if it has one, as SQL writes it."""
    return ".".join(quoted(part) for part in table.split(".", 1))

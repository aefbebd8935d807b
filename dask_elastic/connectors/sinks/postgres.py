"""A sink that writes to a table of a Postgres server."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.connectors.libraries import lacking
from dask_elastic.connectors.sinks.postgres_session import ORDER, PostgresSession, PostgresTransaction
from dask_elastic.topology.schema import check_schema, plain_schema
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError

BUFFERED_ROWS = 65_536
BUFFERED_BYTES = 16 * 2**20
"""Rows and bytes that a writer with checkpoints keeps in memory before it copies them to the server."""


class Postgres(Sink):
    """Write rows to a table of a Postgres server, through ADBC; needs the extra `postgres`.

    In a job with checkpoints, rows are copied to a staging table, and moved to the table in one SQL transaction when
    the checkpoint after them is complete. The same transaction records the checkpoint in the table
    `dask_elastic_commits` beside it, so that each row is written once, whatever fails. Otherwise, each batch is
    written at once.

    Parameters
    ----------
    uri : str
        The connection string, such as "postgresql://user@host/database". All workers must be able to connect.
    table : str
        The table, such as "delays" or "reports.delays". It is created with the columns of the first rows if it does
        not exist.
    key : str or sequence of str, optional
        Columns by which a row replaces an earlier one. The table must have a unique index on them; a table that the
        sink creates gets a primary key. By default rows are appended.

    Raises
    ------
    TopologyError
        When an option is invalid.

    Notes
    -----
    Postgres converts values to the types of an existing table. A value that does not fit fails the job when its rows
    are prepared. A violation of a unique index that is not the key is found at the commit only, and fails every
    restart until the row is removed from its staging table. Their names begin with `dask_elastic_`, and end with the
    generation, the checkpoint and the instance, as in `dask_elastic_6a1f3c_g0_c12_i3`.

    The connection string is stored with the topology, also in checkpoints. Keep the password out of it: libpq finds it
    in a password file or a service file of the workers.

    `dask_elastic_commits` has one row per run of a job, sink and instance, with the last checkpoint. It is needed as
    long as the job can be restarted.

    Examples
    --------
    >>> Postgres("postgresql://writer@db/flights", "delays", key="plane")
    Postgres('delays', key=['plane'])
    """

    promise = "exactly-once"

    def __init__(self, uri: str, table: str, *, key: str | Sequence[str] = ()):
        if not isinstance(uri, str) or not uri:
            raise TopologyError("sinks.Postgres: uri is no text; give a connection string, as postgresql://host/db.")
        if not isinstance(table, str) or not all(table.split(".", 1)):
            raise TopologyError(f'sinks.Postgres: table is {table!r}; give a name, such as "reports.delays".')
        columns = (key,) if isinstance(key, str) else tuple(key)
        if not all(isinstance(name, str) and name for name in columns):
            raise TopologyError(f"sinks.Postgres: key is {key!r}; give names of columns.")
        self.uri = uri
        self.table = table
        self.key = columns

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text, without the connection string, which may have a password."""
        return f"Postgres({self.table!r}, key={list(self.key)!r})" if self.key else f"Postgres({self.table!r})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Connect to the server and return a writer.

        Parameters
        ----------
        context : SinkContext
            The job, operator, run, generation and instance, which identify transactions.

        Returns
        -------
        SinkWriter
            The writer.

        Raises
        ------
        SinkError
            When the driver is missing or too old, or the server cannot be reached.
        """
        where = f"sink {context.operator!r} of job {context.job!r}, table {self.table}"
        for name in ("adbc-driver-manager", "adbc-driver-postgresql"):
            lack = lacking(name.replace("-", "_"), name, "postgres")
            if lack is not None:
                raise SinkError(f"{where}: {lack}")
        return _Writer(self, PostgresSession(self.uri, self.table, self.key, where), context, where)


class _Writer(SinkWriter):
    def __init__(self, sink: Postgres, session: PostgresSession, context: SinkContext, where: str):
        self._session = session
        self._table = sink.table
        self._key = sink.key
        self._context = context
        self._where = where
        self._run = context.run or uuid.uuid4().hex
        # Without the name of the job, which may be resumed under another one.
        self._prefix = _prefix(context.operator, self._run)
        self._schema: pa.Schema | None = None
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._copied = False
        self._closed = False

    def write(self, rows: pa.RecordBatch) -> None:
        if self._schema is None:
            self._schema = plain_schema(rows.schema)
            self._check_columns(self._schema)
        if not rows.num_rows:
            return
        self._buffer.append(check_schema(self._schema, rows, self._where))
        self._buffered_rows += rows.num_rows
        self._buffered_bytes += rows.nbytes
        full = self._buffered_rows >= BUFFERED_ROWS or self._buffered_bytes >= BUFFERED_BYTES
        if full or not self._context.checkpoints:
            self._copy()
        if not self._context.checkpoints:
            self._insert()

    def close(self) -> None:
        if self._closed:
            return
        self._copy()
        self._insert()
        self._closed = True
        self._session.close()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.close()

    def prepare(self, checkpoint: int) -> object | None:
        self._copy()
        if not self._copied:
            return None
        context = self._context
        staging = f"{self._prefix}_g{context.generation}_c{checkpoint}_i{context.instance}"
        transaction = PostgresTransaction(
            context.job, self._run, context.operator, context.instance, checkpoint, staging, self._table
        )
        self._session.stage(transaction)
        self._copied = False
        return transaction

    def commit(self, prepared: object) -> None:
        if not isinstance(prepared, PostgresTransaction):
            raise SinkError(f"{self._where}: {prepared!r} is not a transaction of sinks.Postgres.")
        self._session.commit(prepared)

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        super().recover(prepared, checkpoint)
        context = self._context
        # Earlier versions had the name of the job in the names.
        for prefix in (self._prefix, _prefix(context.job, context.operator, self._run)):
            self._session.sweep(prefix, context.generation, checkpoint)

    def _check_columns(self, schema: pa.Schema) -> None:
        missing = [name for name in self._key if name not in schema.names]
        if missing:
            names = ", ".join(schema.names)
            raise SinkError(f"{self._where}: the rows have no column {missing[0]!r} for the key; they have {names}.")
        if ORDER in schema.names:
            raise SinkError(f"{self._where}: the name of column {ORDER!r} is reserved; rename it.")

    def _copy(self) -> None:
        """Copy the buffered rows to the server."""
        if self._buffer:
            [rows] = pa.Table.from_batches(self._buffer).combine_chunks().to_batches()
            self._session.copy(rows)
            self._buffer, self._copied = [], True
            self._buffered_rows = self._buffered_bytes = 0

    def _insert(self) -> None:
        if self._copied:
            self._session.insert()
            self._copied = False


def _prefix(*names: str) -> str:
    """Return what the names of staging tables begin with."""
    return f"dask_elastic_{hashlib.blake2b(chr(0).join(names).encode(), digest_size=6).hexdigest()}"

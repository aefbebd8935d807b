from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import adbc_driver_postgresql.dbapi as driver
import cloudpickle
import pyarrow as pa
import pytest

from dask_elastic.connectors import sinks
from dask_elastic.testing import check_sink
from dask_elastic.topology import SinkContext
from dask_elastic.vocab.errors import SchemaMismatch, SinkError, TopologyError

sys.path.insert(0, str(Path(__file__).parent))
from postgres_server import PostgresServer


class Database:
    """A connection that reads what a sink wrote."""

    def __init__(self, uri: str):
        self.uri = uri
        self.connection = driver.connect(uri, autocommit=True)

    def run(self, statement: str) -> list[tuple[object, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def table(self, name: str) -> pa.Table:
        with self.connection.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{name}"')
            return cursor.fetch_arrow_table()

    def tables(self) -> list[str]:
        return [name for (name,) in self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    """An empty database."""
    database = Database(server.uri)
    database.run("DROP SCHEMA public CASCADE")
    database.run("CREATE SCHEMA public")
    yield database
    database.connection.close()


def context(generation: int = 0, instance: int = 0, checkpoints: bool = True, run: str = "0123456789ab") -> SinkContext:
    return SinkContext(
        "job",
        "out",
        node=instance,
        instance=instance,
        run=run,
        checkpoints=checkpoints,
        generation=generation,
        restored=generation > 0,
    )


def numbers(start: int, stop: int, value: str = "x") -> pa.RecordBatch:
    n = pa.array(range(start, stop), pa.int64())
    return pa.RecordBatch.from_pydict({"n": n, "value": pa.array([value] * len(n), pa.string())})


def test_postgres_sink_shows_each_row_once(database):
    tables = itertools.count()

    def read(sink):
        return database.table(sink.table) if sink.table in database.tables() else []

    check_sink(lambda: sinks.Postgres(database.uri, f"t{next(tables)}"), read)


def test_job_without_checkpoints_shows_each_batch_at_once(database):
    writer = sinks.Postgres(database.uri, "delays").open(context(checkpoints=False))
    writer.write(numbers(0, 2))
    assert database.run("SELECT n FROM delays") == [(0,), (1,)]
    writer.write(numbers(2, 3))
    writer.close()
    writer.close()
    writer.abort()
    assert database.run("SELECT count(*) FROM delays") == [(3,)]
    assert database.tables() == ["delays"]


def test_key_keeps_the_last_row(database):
    writer = sinks.Postgres(database.uri, "delays", key=["n"]).open(context())
    for checkpoint, value in enumerate(("a", "b"), 1):
        writer.write(numbers(0, 3, value))
        writer.write(numbers(checkpoint, 3, f"{value}{value}"))
        writer.commit(writer.prepare(checkpoint))
    assert database.run("SELECT * FROM delays ORDER BY n") == [(0, "b"), (1, "b"), (2, "bb")]
    writer.abort()


def test_rows_that_are_only_a_key_are_kept_once(database):
    writer = sinks.Postgres(database.uri, "planes", key="n").open(context(checkpoints=False))
    for _ in range(2):
        writer.write(pa.RecordBatch.from_pydict({"n": [1, 1, 2]}))
    writer.close()
    assert database.run("SELECT n FROM planes ORDER BY n") == [(1,), (2,)]


def test_rows_beyond_the_buffer_belong_to_one_transaction(database, monkeypatch):
    monkeypatch.setattr("dask_elastic.connectors.sinks.postgres.BUFFERED_ROWS", 5)
    writer = sinks.Postgres(database.uri, "delays").open(context())
    for start in range(0, 12, 3):
        writer.write(numbers(start, start + 3))
    prepared = writer.prepare(1)
    assert writer.prepare(2) is None
    assert database.run("SELECT count(*) FROM delays") == [(0,)]
    writer.abort()
    sinks.Postgres(database.uri, "delays").open(context(1)).recover(cloudpickle.loads(cloudpickle.dumps([prepared])), 1)
    assert database.run("SELECT count(*), min(n), max(n) FROM delays") == [(12, 0, 11)]


def test_recovery_drops_staging_tables_of_incomplete_checkpoints(database):
    sink = sinks.Postgres(database.uri, "delays")
    writers = [sink.open(context(instance=instance)) for instance in range(2)]
    prepared = []
    for checkpoint in (1, 2):
        for writer in writers:
            writer.write(numbers(checkpoint, checkpoint + 1))
            prepared.append(writer.prepare(checkpoint))
    other = sink.open(context(run="ba9876543210"))
    other.write(numbers(7, 8))
    other.prepare(2)
    assert len(database.tables()) == 1 + 4 + 1
    early = sink.open(context(1, instance=1))
    early.recover([], 1)
    early.write(numbers(8, 9))
    early.prepare(2)
    restarted = sink.open(context(1))
    restarted.recover(prepared[:1], 1)
    # Kept: the other instance's staging tables of the checkpoint and of the new generation, that of the other run, the
    # commits, the table.
    assert len(database.tables()) == 5
    restarted.commit(prepared[1])
    assert database.run("SELECT n FROM delays") == [(1,), (1,)]
    assert database.run("SELECT job, sink, instance, checkpoint FROM dask_elastic_commits ORDER BY instance") == [
        ("job", "out", 0, 1),
        ("job", "out", 1, 1),
    ]
    for writer in (*writers, other, early, restarted):
        writer.abort()


def test_writers_that_commit_one_transaction_together_write_it_once(database):
    sink = sinks.Postgres(database.uri, "delays")
    writer = sink.open(context())
    writer.write(numbers(0, 3))
    prepared = writer.prepare(1)
    writer.abort()
    start = threading.Barrier(3)

    def commit(generation: int) -> None:
        other = sink.open(context(generation))
        start.wait(30)
        other.commit(prepared)
        other.abort()

    threads = [threading.Thread(target=commit, args=(generation,)) for generation in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.run("SELECT n FROM delays ORDER BY n") == [(0,), (1,), (2,)]


def test_writers_that_start_together_create_the_table_once(database):
    sink = sinks.Postgres(database.uri, "delays", key="n")
    start = threading.Barrier(3)
    failures = []

    def write(instance: int) -> None:
        try:
            writer = sink.open(context(instance=instance))
            start.wait(30)
            writer.write(numbers(instance, instance + 1))
            writer.commit(writer.prepare(1))
            writer.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(instance,)) for instance in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert database.run("SELECT n FROM delays ORDER BY n") == [(0,), (1,), (2,)]


def test_rows_are_converted_to_an_existing_table_in_another_schema(database):
    database.run('CREATE SCHEMA "Reports"')
    database.run('CREATE TABLE "Reports"."delays by plane" (value text, "n" smallint, at timestamp DEFAULT now())')
    writer = sinks.Postgres(database.uri, "Reports.delays by plane").open(context())
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)
    writer.commit(prepared)
    writer.commit(prepared)
    assert database.run('SELECT n, value FROM "Reports"."delays by plane" ORDER BY n') == [(0, "x"), (1, "x")]
    assert database.tables() == []
    database.run('DROP SCHEMA "Reports" CASCADE')
    writer.abort()


def test_rows_before_the_checkpoint_are_written_beside_the_staging_table_of_before(database):
    for schema in ("reports", "archive"):
        database.run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        database.run(f"CREATE SCHEMA {schema}")
    writer = sinks.Postgres(database.uri, "reports.delays").open(context())
    prepared = []
    for checkpoint in (1, 2):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(cloudpickle.loads(cloudpickle.dumps(writer.prepare(checkpoint))))
    writer.commit(prepared[0])
    for generation in (1, 2):
        writer = sinks.Postgres(database.uri, "archive.delays").open(context(generation))
        writer.recover(prepared, 2)
    writer.write(numbers(3, 4))
    writer.commit(writer.prepare(3))
    assert database.run("SELECT n FROM reports.delays ORDER BY 1") == [(1,), (2,)]
    assert database.run("SELECT n FROM archive.delays") == [(3,)]


def test_rows_before_the_checkpoint_are_written_to_the_table_of_before_or_its_new_name(database):
    writer = sinks.Postgres(database.uri, "delays").open(context())
    prepared = []
    for checkpoint in (1, 2):
        writer.write(numbers(checkpoint, checkpoint + 1))
        prepared.append(writer.prepare(checkpoint))
    sinks.Postgres(database.uri, "others").open(context(1)).commit(prepared[0])
    assert database.run("SELECT n FROM delays") == [(1,)]
    assert "others" not in database.tables()
    database.run("ALTER TABLE delays RENAME TO renamed")
    sinks.Postgres(database.uri, "renamed").open(context(2)).commit(prepared[1])
    assert database.run("SELECT n FROM renamed ORDER BY 1") == [(1,), (2,)]


def test_value_that_does_not_fit_fails_before_the_checkpoint_is_complete(database):
    database.run("CREATE TABLE delays (n smallint CHECK (n < 100), value text)")
    for count in (40_000, 101):
        writer = sinks.Postgres(database.uri, "delays").open(context())
        writer.write(numbers(count - 1, count))
        with pytest.raises(SinkError, match=r"job 'job', table delays: cannot prepare rows: .*smallint|check"):
            writer.prepare(1)
        writer.abort()
    assert database.tables() == ["delays"]


def test_lost_staging_table_is_an_error(database):
    writer = sinks.Postgres(database.uri, "delays").open(context())
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)
    database.run(f"DROP TABLE {prepared.staging}")
    for _ in range(2):
        with pytest.raises(SinkError, match=rf"cannot commit: .*{prepared.staging}"):
            writer.commit(prepared)
    writer.abort()


def test_recovery_drops_staging_tables_that_the_job_left_under_another_name(database):
    sink = sinks.Postgres(database.uri, "delays")
    writer = sink.open(replace(context(), job="before"))
    for checkpoint in (1, 2):
        writer.write(numbers(checkpoint, checkpoint + 1))
        last = writer.prepare(checkpoint)
    writer.abort()
    assert last.staging in database.tables()
    restarted = sink.open(context(1))
    restarted.recover([last._replace(checkpoint=1, staging=last.staging.replace("_c2_", "_c1_"))], 1)
    assert database.tables() == ["dask_elastic_commits", "delays"]
    assert database.run("SELECT n FROM delays") == [(1,)]
    restarted.abort()


def test_rows_that_were_prepared_in_another_database_are_named_with_a_way_out(database):
    writer = sinks.Postgres(database.uri, "delays").open(context())
    writer.write(numbers(0, 2))
    prepared = writer.prepare(1)
    database.run("DROP DATABASE IF EXISTS others")
    database.run("CREATE DATABASE others")
    other = sinks.Postgres(f"{database.uri}&dbname=others", "delays").open(context(1))
    error = rf"no staging table .*{prepared.staging}.* another uri= before.* drop=\['{prepared.sink}'\] .* is lost"
    for _ in range(2):
        with pytest.raises(SinkError, match=error):
            other.recover([prepared], 1)
    other.abort()
    sinks.Postgres(database.uri, "delays").open(context(2)).recover([prepared], 1)
    assert database.run("SELECT n FROM delays ORDER BY 1") == [(0,), (1,)]


def test_server_that_cannot_be_reached_is_named_without_the_password():
    sink = sinks.Postgres("postgresql://me:secret@/base?host=/nowhere", "delays")
    with pytest.raises(SinkError, match=r"table delays: cannot connect: .*/nowhere") as caught:
        sink.open(context())
    assert "secret" not in f"{caught.value}{sink!r}"


def test_rows_of_another_schema_are_refused(database):
    writer = sinks.Postgres(database.uri, "delays", key="plane").open(context())
    with pytest.raises(SinkError, match="the rows have no column 'plane' for the key; they have n, value"):
        writer.write(numbers(0, 1))
    writer.abort()
    writer = sinks.Postgres(database.uri, "delays").open(context())
    writer.write(numbers(0, 1))
    with pytest.raises(SchemaMismatch, match=r"table delays.*column 'n': string instead of int64"):
        writer.write(pa.RecordBatch.from_pydict({"n": ["1"], "value": ["x"]}))
    with pytest.raises(SinkError, match=r"7 is not a transaction of sinks\.Postgres"):
        writer.commit(7)
    writer.abort()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "delays"), "uri is no text"),
        (("postgresql://", ""), "table is ''"),
        (("postgresql://", "x."), r"table is 'x\.'"),
    ],
)
def test_invalid_options_of_a_postgres_sink_are_refused(arguments, message):
    with pytest.raises(TopologyError, match=message):
        sinks.Postgres(*arguments)
    with pytest.raises(TopologyError, match=r"key is \[3\]"):
        sinks.Postgres("postgresql://", "delays", key=[3])

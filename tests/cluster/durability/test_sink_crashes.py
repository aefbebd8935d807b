"""Processes die in the midst of the two phases of a sink's commit; readers still see each row as often as promised.

The short form kills one sink per kind once. ``make faults`` kills each of them at every point.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.vocab.errors import NodeLost, NoWorkers

sys.path.insert(0, str(Path(__file__).parents[2] / "connectors"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import crashing_sinks
from crashing_sinks import AMID, POINTS, Crashing
from oracle import numbered_rows
from postgres_server import PostgresServer

del sys.path[:3]
# Workers cannot import it.
cloudpickle.register_pickle_by_value(crashing_sinks)

ROWS = numbered_rows(12_000, keys=50)
RATE = 6_000
EVERY_POINT = bool(os.environ.get("DASK_ELASTIC_EVERY_CRASH"))
"""Whether to kill each sink at every point, not at one of them only."""
SECONDS = 500 if EVERY_POINT else 180
"""Each kill restarts all jobs."""


class Kind:
    """A kind of sink: makes one with an empty destination, and reads it back."""

    promise = "exactly-once"

    def __init__(self, folder):
        self.folder = folder

    def follow(self, client, crashing, wait_until):
        """Begin to read what the job writes."""

    def close(self):
        """Free what it uses."""


class Parquet(Kind):
    def sink(self):
        return de.sinks.Parquet(self.folder)

    def read(self):
        return ds.dataset(self.folder, format="parquet").to_table(columns=["k", "seq"])


class Delta(Kind):
    def sink(self):
        return de.sinks.Delta(self.folder)

    def read(self):
        from deltalake import DeltaTable

        return DeltaTable(self.folder).to_pyarrow_table(columns=["k", "seq"])


class Postgres(Kind):
    def __init__(self, folder):
        super().__init__(folder)
        self.server = PostgresServer()

    def sink(self):
        return de.sinks.Postgres(self.server.uri, "rows")

    def read(self):
        import adbc_driver_postgresql.dbapi as driver

        with driver.connect(self.server.uri) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT k, seq FROM rows")
            return cursor.fetch_arrow_table()

    def close(self):
        self.server.close()


class Call(Kind):
    promise = "at-least-once"

    def sink(self):
        folder = self.folder
        folder.mkdir()

        def append(batch):
            # One write call, which a kill between two calls cannot divide.
            with (folder / str(os.getpid())).open("ab", buffering=0) as file:
                lines = "".join(f"{row['k']} {row['seq']}\n" for row in batch.select(["k", "seq"]).to_pylist())
                file.write(lines.encode())

        return de.sinks.Call(append)

    def read(self):
        lines = [line.split() for file in self.folder.iterdir() for line in file.read_text().splitlines()]
        return pa.table({"k": [int(line[0]) for line in lines], "seq": [int(line[1]) for line in lines]})


class DaskQueue(Kind):
    """A queue and a reader that drops by their numbers the batches that come again."""

    def __init__(self, folder):
        super().__init__(folder)
        self.name = str(folder)
        self.batches = []

    def sink(self):
        return de.sinks.DaskQueue(self.name)

    def follow(self, client, crashing, wait_until):
        def died_or_left(moment):
            return crashing.mark.exists() or crashing.drains.read_text() != moment

        def read():
            moment = None
            for rows in de.read_queue(self.name, client):
                numbers = {name.decode(): int(number) for name, number in rows.schema.metadata.items()}
                self.batches.append((numbers, rows))
                before, moment = moment, crashing.drains.read_text() if crashing.when == "amid" else ""
                if moment and moment == before:
                    # The batch before is taken, this one is not.
                    wait_until(functools.partial(died_or_left, moment), "the process dies")

        self.reading = threading.Thread(target=read)
        self.reading.start()

    def read(self):
        self.reading.join(SECONDS)
        assert not self.reading.is_alive()
        places = [(numbers["generation"], numbers["batch"]) for numbers, _ in self.batches]
        assert len({*places}) == len(places), "a batch was read twice"
        valid = []
        for numbers, rows in self.batches:
            generation, checkpoint = numbers["generation"], numbers["checkpoint"]
            valid = [
                (earlier, kept)
                for earlier, kept in valid
                if earlier["generation"] == generation or earlier["checkpoint"] < checkpoint
            ]
            valid.append((numbers, rows))
        for _, group in itertools.groupby(valid, lambda each: each[0]["generation"]):
            numbers = [each["batch"] for each, _ in group]
            assert numbers == [*range(len(numbers))], "a batch is missing"
        return pa.Table.from_batches([rows.replace_schema_metadata() for _, rows in valid]).select(["k", "seq"])


KINDS = (Parquet, Delta, Postgres, Call, DaskQueue)
ONE_POINT = {Parquet: POINTS[2], Delta: POINTS[3], Postgres: POINTS[1], Call: POINTS[1], DaskQueue: AMID}
"""After the manifest and before the commit; after the commit; between the last row and the acknowledgement."""
# Sinks that write at once have nothing to commit.
AT_ONCE = {Call: POINTS[:2], DaskQueue: (POINTS[0], AMID, POINTS[1])}
CASES = [(kind, point) for kind in KINDS for point in (AT_ONCE.get(kind, POINTS) if EVERY_POINT else [ONE_POINT[kind]])]


def submitted(topology, client, options):
    """Submit a job; return None if workers are dying at this moment, in the midst of commits of other jobs."""
    try:
        return de.submit(topology, client, **options)
    except (NodeLost, NoWorkers):
        return None


def read_rows(kind):
    """How often a reader sees each row."""
    rows = kind.read()
    return Counter(zip(rows["k"].to_pylist(), rows["seq"].to_pylist(), strict=True))


@pytest.mark.parametrize("cases", [CASES], ids=["every point" if EVERY_POINT else "one point per kind"])
def test_process_dies_in_the_midst_of_a_commit(small_cluster, wait_until, tmp_path, cases):
    wanted = set(zip(ROWS["k"].to_pylist(), ROWS["seq"].to_pylist(), strict=True))
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        jobs = []
        for number, (kind, (step, when)) in enumerate(cases):
            place = tmp_path / str(number)
            place.mkdir()
            made = kind(place / "out")
            mark = place / "crashed"
            topology = de.Topology(f"crash-{number}")
            rows = topology.source("rows", de.sources.Arrow(ROWS, rate=RATE, batch_rows=500))
            crashing = Crashing(made.sink(), mark, step, when)
            rows.sink(crashing, name="out")
            options = {"checkpoint": place / "checkpoints", "checkpoint_interval": "300ms", "restart_attempts": 50}
            job = wait_until(functools.partial(submitted, topology, client, options), "the job is submitted")
            jobs.append((made, mark, f"{kind.__name__} {when} {step}", job))
            made.follow(client, crashing, wait_until)
        try:
            for made, mark, what, job in jobs:
                job.wait(SECONDS, progress=False)
                assert mark.exists(), f"{what}: no process died"
                assert job._describe().checkpoints.restarts > 0, what
                found = read_rows(made)
                assert found.keys() == wanted, what
                if made.promise == "exactly-once":
                    assert found.total() == len(wanted), what
        finally:
            for made, *_ in jobs:
                made.close()

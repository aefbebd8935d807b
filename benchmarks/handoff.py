"""Cost of the handoff of Spark's micro-batches to a running job.

Prints one JSON line per setting. One run measures all sinks in alternation, because the machine's speed varies.

- `noop`: Spark's own sink that drops all rows; the lower bound.
- `bare`: a Python Data Source that sends each Arrow batch to a Dask worker, which drops it: the same connection and
  window as `dask_elastic`, without digest, staging, ledger and job.
- `dask_elastic`: into a job that reads the rows and drops them.
- `dask_elastic with checkpoints`: the same with checkpoints every 10 s, in a folder below $TMPDIR: every micro-batch is
  durable before its commit returns.

Micro-batches of 1 M rows of 100 bytes: rows/s of the median micro-batch, from its trigger to its commit, without the
first ones. `ratio_to_bare` is the ratio of the medians. `staged_MiB` is the maximum that a source's instance held in
memory, `spilled_MiB` the maximum on disk.

Micro-batches of 10 k rows: seconds from Spark's trigger until their last row is in the state of a count by key, and the
whole trigger of `noop` and of `dask_elastic`.

`--slow` measures memory under backpressure instead. Spark writes micro-batches as fast as possible into a job that
accepts far fewer rows per second. `staged_MiB` is the maximum that one of the two instances held in memory, of the
allowed `staging_MiB`. For each kind of process the line has the resident sizes of the largest one: when the job had
read its first rows (`first`), the maximum (`peak`), and the mean of the last third of the time minus that of the second
third (`drift`; with an unbounded queue it would be as large as Spark's excess).

`--partitions 4,20,200` measures instead how long the trigger of a micro-batch of 10 k rows takes by its number of
partitions, with `noop`, `bare`, and `dask_elastic` without and with checkpoints, in alternation.

    python benchmarks/handoff.py [--batches 8] [--rows 1000000] [--rounds 2]
    python benchmarks/handoff.py --slow [--seconds 75]
    python benchmarks/handoff.py --partitions 4,20,200 [--batches 8] [--rounds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, LocalCluster
from distributed.comm import connect
from distributed.protocol import to_serialize
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import dask_elastic as de
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark import into, register, session

WARM_UP = 2
KEYS = 100
TEXT = 68
SMALL_ROWS = 10_000


def source(spark: Any, rows: int, partitions: int = 2) -> Any:
    """Return a stream of rows of 100 bytes: three numbers, a timestamp and a string."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return (
        reader.option("numPartitions", partitions)
        .load()
        .selectExpr(
            "value as id",
            f"value % {KEYS} as k",
            "value * 0.5D as price",
            "timestamp as at",
            f"repeat('x', {TEXT}) as text",
        )
    )


def run(stream: Any, sink: str, options: dict[str, str], batches: int) -> list[dict[str, Any]]:
    """Write micro-batches as fast as possible; return the progress of those after the first."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = stream.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint).start()
        seen: dict[int, dict[str, Any]] = {}
        while len(seen) < batches:
            for each in query.recentProgress:
                if each["numInputRows"]:
                    seen[each["batchId"]] = json.loads(each.json)
            if query.exception():
                raise query.exception()
            time.sleep(0.05)
        query.stop()
    return [seen[number] for number in sorted(seen)][WARM_UP:]


def seconds(progress: list[dict[str, Any]]) -> list[float]:
    return [each["durationMs"]["triggerExecution"] / 1000 for each in progress]


# the bare sink


class Sent(WriterCommitMessage):
    """An empty commit message."""


class BareSource(DataSource):
    """The sink `bare` of the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return BareWriter(self.options["addresses"].split(","))


class BareWriter(DataSourceStreamArrowWriter):
    """Sends batches with the same window of unanswered bytes as the real writer."""

    def __init__(self, addresses: list[str]):
        self.addresses = addresses

    def write(self, iterator: Any) -> Sent:
        from pyspark import TaskContext

        from dask_elastic.spark import staging_connection
        from dask_elastic.spark.background_loop import background_loop

        partition = TaskContext.get().partitionId()
        loop = background_loop()
        address = self.addresses[partition % len(self.addresses)]
        idle = staging_connection.__dict__.setdefault("BARE", {}).setdefault(address, [])
        comm = idle.pop() if idle else loop.run(_dial(address))
        sending, state = None, {"unanswered": 0}
        for batch in iterator:
            if sending is not None:
                sending.result()
            sending = loop.begin(_send(comm, batch.serialize(), state, staging_connection.WINDOW))
        if sending is not None:
            sending.result()
        loop.run(_send(comm, None, state, 0))
        idle.append(comm)
        return Sent()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        pass


async def _dial(address: str) -> Any:
    comm = await connect(address)
    await comm.write({"op": "bare_stage", "reply": False})
    return comm


async def _send(comm: Any, chunk: Any, state: dict[str, int], window: int) -> None:
    if chunk is not None:
        state["unanswered"] += chunk.size
        await comm.write({"chunk": to_serialize(memoryview(chunk))})
    while state["unanswered"] > window:
        state["unanswered"] -= (await comm.read())["taken"]


def add_bare_handler(dask_worker: Any) -> None:
    async def drop(comm: Any) -> str:
        from distributed.comm.core import CommClosedError

        try:
            while True:
                message = await comm.read()
                await comm.write({"taken": len(message["chunk"])})
        except (CommClosedError, OSError, asyncio.CancelledError):
            comm.abort()
        return "dont_reply"

    dask_worker.handlers["bare_stage"] = drop


# dask_elastic

CHECKPOINTED = "dask_elastic with checkpoints"


def dropping_job(client: Client, schema: Any, checkpoint: str | None = None) -> de.Job:
    topology = de.Topology("dropping")
    rows = topology.source("rows", de.sources.Spark(schema, parallel=2))
    rows.sink(de.sinks.Call(lambda batch: None), name="drop")
    return de.submit(topology, client, checkpoint=checkpoint)


def staged(client: Client) -> tuple[float, float]:
    """Return the maximum that any instance held in memory and on disk, in MiB."""

    def peaks(dask_worker: Any) -> tuple[int, int]:
        job_parts = dask_worker.plugins["dask-elastic-worker"].runtime.job_parts.values()
        intakes = [thread.mailbox for each in job_parts for thread in each.sources.values()]
        return max((each.peak for each in intakes), default=0), max((each.peak_spilled for each in intakes), default=0)

    found = client.run(peaks).values()
    return max(kept for kept, _ in found) / 2**20, max(spilled for _, spilled in found) / 2**20


def large(spark: Any, client: Client, rows: int, batches: int, rounds: int) -> None:
    client.run(add_bare_handler)
    spark.dataSource.register(BareSource)
    stream = source(spark, rows)
    addresses = ",".join(client.nthreads())
    found: dict[str, list[float]] = {"noop": [], "bare": [], "dask_elastic": [], CHECKPOINTED: []}
    peaks = (0.0, 0.0)
    for _ in range(rounds):
        found["noop"] += seconds(run(stream, "noop", {}, batches))
        found["bare"] += seconds(run(stream, "bare", {"addresses": addresses}, batches))
        job = dropping_job(client, stream.schema)
        found["dask_elastic"] += seconds(run(stream, "dask_elastic", into(job), batches))
        peaks = max(peaks, staged(client))
        job.forget()
        with tempfile.TemporaryDirectory() as folder:
            job = dropping_job(client, stream.schema, folder)
            found[CHECKPOINTED] += seconds(run(stream, "dask_elastic", into(job), batches))
            job.forget()
    rates = {name: rows / statistics.median(each) for name, each in found.items()}
    for name, each in found.items():
        line: dict[str, Any] = {"sink": name, "rows": rows, "batches": len(each), "rows_per_second": round(rates[name])}
        line |= {"seconds": [round(value, 3) for value in sorted(each)]}
        if name in ("dask_elastic", CHECKPOINTED):
            line |= {"ratio_to_bare": round(rates[name] / rates["bare"], 3)}
        if name == "dask_elastic":
            line |= {"staged_MiB": round(peaks[0], 1), "spilled_MiB": round(peaks[1], 1)}
        print(json.dumps(line), flush=True)


# small micro-batches


def noting(path: str) -> Any:
    """Return a function that logs the time and the number of counted rows."""
    latest: dict[int, int] = {}

    def note(batch: Any) -> None:
        latest.update(zip(batch["k"].to_pylist(), batch["rows"].to_pylist(), strict=True))
        with Path(path).open("a") as file:
            file.write(f"{time.time()} {sum(latest.values())}\n")

    return note


def small(spark: Any, client: Client, batches: int) -> None:
    stream = source(spark, SMALL_ROWS)
    floor = seconds(run(stream, "noop", {}, batches))
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "counted"
        topology = de.Topology("counting")
        rows = topology.source("rows", de.sources.Spark(stream.schema))
        counted = rows.key_by("k").compute({"rows": de.aggregate.Count()}, name="per_key", executors=1)
        counted.sink(de.sinks.Call(noting(str(notes))), name="note")
        job = de.submit(topology, client, latency_target=None)
        progress = run(stream, "dask_elastic", into(job), batches)
        job.wait(60, progress=False)
        times = [(float(at), int(count)) for at, count in map(str.split, notes.read_text().splitlines())]
        job.forget()
    delays = []
    for each in progress:
        began = dt.datetime.fromisoformat(each["timestamp"]).timestamp()
        through = (each["batchId"] + 1) * SMALL_ROWS
        delays.append(min(at for at, count in times if count >= through) - began)
    line = {
        "rows": SMALL_ROWS,
        "batches": len(delays),
        "trigger_to_state_p50": round(statistics.median(delays), 3),
        "trigger_to_state_max": round(max(delays), 3),
        "our_trigger_p50": round(statistics.median(seconds(progress)), 3),
        "noop_trigger_p50": round(statistics.median(floor), 3),
    }
    print(json.dumps(line), flush=True)


# small micro-batches of many partitions


def partitioned(spark: Any, client: Client, counts: list[int], batches: int, rounds: int) -> None:
    client.run(add_bare_handler)
    spark.dataSource.register(BareSource)
    addresses = ",".join(client.nthreads())
    found: dict[tuple[int, str], list[float]] = {}
    for _ in range(rounds):
        for count in counts:
            stream = source(spark, SMALL_ROWS, count)
            found.setdefault((count, "noop"), []).extend(seconds(run(stream, "noop", {}, batches)))
            bare = run(stream, "bare", {"addresses": addresses}, batches)
            found.setdefault((count, "bare"), []).extend(seconds(bare))
            for name in ("dask_elastic", CHECKPOINTED):
                with tempfile.TemporaryDirectory() as folder:
                    job = dropping_job(client, stream.schema, folder if name == CHECKPOINTED else None)
                    found.setdefault((count, name), []).extend(seconds(run(stream, "dask_elastic", into(job), batches)))
                    job.forget()
    for (count, sink), each in found.items():
        line = {"partitions": count, "sink": sink, "rows": SMALL_ROWS, "batches": len(each)}
        print(json.dumps({**line, "trigger_p50": round(statistics.median(each), 3)}), flush=True)


# a job that is slower than Spark


SLOW_ROWS = 200_000
SLOW_RATE = 40_000
STAGING = 16


def resident(workers: list[int]) -> dict[str, float]:
    """Return the resident size, in MiB, of the largest process of each kind."""
    found: dict[str, list[float]] = {"dask_worker": [], "spark_python": [], "spark_java": []}
    for process in psutil.Process().children(recursive=True):
        try:
            size, command = process.memory_info().rss / 2**20, process.cmdline()
        except psutil.Error:
            continue
        if process.pid in workers:
            found["dask_worker"].append(size)
        elif "pyspark.daemon" in command:
            found["spark_python"].append(size)
        elif command and Path(command[0]).name == "java":
            found["spark_java"].append(size)
    return {kind: max(sizes, default=0.0) for kind, sizes in found.items()}


def slow(spark: Any, client: Client, lasting: float) -> None:
    stream = source(spark, SLOW_ROWS)
    able = SLOW_ROWS / statistics.median(seconds(run(stream, "noop", {}, 6)))
    topology = de.Topology("slow")
    options = {"parallel": 2, "rate": SLOW_RATE, "staging": f"{STAGING}MiB", "epochs": 1}
    topology.source("rows", de.sources.Spark(stream.schema, **options)).sink(
        de.sinks.Call(lambda batch: None), name="drop"
    )
    job = de.submit(topology, client)
    workers = list(client.run(os.getpid).values())
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = stream.writeStream.format("dask_elastic").options(**into(job), end="false")
        query = writer.option("checkpointLocation", checkpoint).start()
        while not taken(client):
            time.sleep(0.1)
        began, first, sizes = time.monotonic(), taken(client), [resident(workers)]
        while time.monotonic() - began < lasting:
            time.sleep(1)
            sizes.append(resident(workers))
        rows, elapsed = taken(client) - first, time.monotonic() - began
        [peak, spilled] = staged(client)
        job.stop()
        query.stop()
    line: dict[str, Any] = {"seconds": round(elapsed), "job_rows_per_second": round(rows / elapsed)}
    line |= {"noop_rows_per_second": round(able), "excess_MiB": round((able * elapsed - rows) * 100 / 2**20)}
    line |= {"staged_MiB": round(peak, 1), "staging_MiB": STAGING, "spilled_MiB": round(spilled, 1)}
    third = len(sizes) // 3
    for kind in sizes[0]:
        seen = [each[kind] for each in sizes]
        drift = statistics.fmean(seen[-third:]) - statistics.fmean(seen[third : 2 * third])
        line[kind] = {"first": round(seen[0]), "peak": round(max(seen)), "drift": round(drift, 1)}
    print(json.dumps(line), flush=True)


def taken(client: Client) -> int:
    """How many rows the job's source has sent on."""
    return call_scheduler(client, Describe("slow")).rows_read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a large micro-batch")
    parser.add_argument("--batches", type=int, default=8, help="large micro-batches of each sink and round")
    parser.add_argument("--rounds", type=int, default=2, help="how often the sinks alternate")
    parser.add_argument("--slow", action="store_true", help="measure memory with a job that is slower than Spark")
    parser.add_argument("--partitions", help="measure small micro-batches of so many partitions, such as 4,20,200")
    parser.add_argument("--seconds", type=float, default=75, help="duration of the --slow measurement")
    options = parser.parse_args()
    spark = session("handoff", master="local[2]", config={"spark.driver.memory": "2g"})
    register(spark)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        if options.slow:
            slow(spark, client, options.seconds)
        elif options.partitions:
            counts = [int(count) for count in options.partitions.split(",")]
            partitioned(spark, client, counts, options.batches, options.rounds)
        else:
            large(spark, client, options.rows, options.batches, options.rounds)
            small(spark, client, 4 * options.batches)
    spark.stop()


if __name__ == "__main__":
    main()

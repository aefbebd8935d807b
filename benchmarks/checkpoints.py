"""What checkpoints cost a running job, how long a restart takes, and how much is written.

`throughput`: rows per second of a count and a sum per key, from the start of the sources to the end of the job, with a
checkpoint every second and without (10,000 keys), then with `--large-keys` keys and one every ten seconds. `latency`:
p99 at half of the throughput, with and without a checkpoint every second. Runs with and without alternate. `restart`:
a home is killed (SIGKILL) while its state is `--state-mb`; seconds until a sink gets the first row of the restarted
job. `resume`: the process of the scheduler is killed, and the job resumed on another cluster; seconds until it runs,
and until a sink gets a row. `bytes`: bytes of checkpoints between which 1, 10 and 100 % of the keys change. Two workers
of one thread each. Prints one JSON line per setting; medians of the runs.

    python benchmarks/checkpoints.py [--measure throughput latency restart resume bytes] [--runs 2] [--seconds 5]
        [--large-keys 1000000] [--large-seconds 16] [--state-mb 50] [--restarts 5] [--bytes-keys 200000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.topology.source import Source, SourceContext

STRIDE = 7919
"""Prime, so that the keys of successive rows visit every key in turn."""

KEYS = 10_000
BATCH = 32_768
SPEED_ROWS = 4_000_000
KEY_BYTES = 44
"""Bytes of a key in a checkpoint."""

PATIENCE = 120.0
AGGREGATES = {"rows": de.aggregate.Count(), "total": de.aggregate.Sum("value")}
SETTINGS = {"distributed.deploy.lost-worker-timeout": "1 hour"}
"""Dask's local cluster removes a killed worker permanently if it is not back within some seconds."""


def batch_of(start: int, rows: int, keys: int) -> pa.RecordBatch:
    """Return some rows of keys in turn."""
    place = np.arange(start, start + rows)
    return pa.record_batch({"key": place * STRIDE % keys, "value": place.astype(np.float64)})


class InTurn(Source):
    """Yields rows of keys in turn; the offset is a number of batches."""

    blocks = False

    def __init__(self, keys: int, rows: int, parallel: int = 2, rate: float | None = None, batch: int = BATCH):
        self.keys, self.rows, self.parallel, self.rate, self.batch = keys, rows, parallel, rate, batch

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Yield every `parallel`-th batch."""
        first = context.offset if isinstance(context.offset, int) else 0
        for number in range(first, self.rows // self.batch // self.parallel):
            start = (number * self.parallel + context.instance) * self.batch
            yield batch_of(start, self.batch, self.keys), number + 1


class Phases(Source):
    """Yields all keys, then after each file that appears in a folder the rows of a share of them."""

    def __init__(self, keys: int, shares: list[float], folder: str):
        self.keys, self.shares, self.folder = keys, shares, folder

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Yield a phase, then wait for the file of the next one."""
        for number, share in enumerate([1.0, *self.shares]):
            while not (Path(self.folder) / str(number)).exists():
                time.sleep(0.01)
            yield batch_of(0, round(self.keys * share), self.keys), number + 1
        while not context.stopping():
            time.sleep(0.1)
            yield batch_of(0, 0, self.keys), len(self.shares) + 1


def wait_for(found: Callable[[], Any], what: str) -> Any:
    """Poll until there is a result."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.01)
    return answer


def complete(job: de.Job) -> Any:
    """Return the job's complete checkpoints."""
    table = job.checkpoints()
    return table[table["error"].isna()]


def run(client: Client, source: Source, folder: str | None, interval: str) -> dict[str, float]:
    """Run a job to its end; returns rows per second, the p99 of the latency, and what its checkpoints took."""
    topology = de.Topology("checkpoints")
    topology.source("rows", source).key_by("key").compute(AGGREGATES, name="per_key", executors=2)
    options = {} if folder is None else {"checkpoint": folder, "checkpoint_interval": interval}
    job = de.submit(topology, client, cores={"per_key": 1}, **options)
    began = time.time()
    job.wait(progress=False)
    description, metrics = job._describe(), job.metrics()
    assert description.ended is not None, "the job has ended"
    found = {"rows_per_s": metrics["rows"].sum() / (description.ended - began), "p99": metrics["latency_p99"].max()}
    if folder is not None:
        taken = complete(job)
        found |= {
            "checkpoints": len(taken),
            "held": taken["held"].max() if len(taken) else 0.0,
            "mb": taken["nbytes"].sum() / 1e6,
        }
    job.forget()
    return found


def alternate(client: Client, runs: int, source: Source, interval: str) -> dict[str, Any]:
    """Run a job with checkpoints and without by turns."""
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for _ in range(runs):
        found["without"].append(run(client, source, None, interval))
        with tempfile.TemporaryDirectory() as folder:
            found["with"].append(run(client, source, folder, interval))

    def median(which: str, name: str) -> float:
        return statistics.median(one[name] for one in found[which])

    return {
        "runs": runs,
        "interval": interval,
        "checkpoints": median("with", "checkpoints"),
        "mb_per_run": round(median("with", "mb"), 1),
        "longest_held_ms": round(median("with", "held") * 1e3, 1),
        "rows_per_s": round(median("with", "rows_per_s")),
        "without_rows_per_s": round(median("without", "rows_per_s")),
        "throughput_ratio": round(median("with", "rows_per_s") / median("without", "rows_per_s"), 3),
        "p99_ms": round(median("with", "p99") * 1e3, 2),
        "without_p99_ms": round(median("without", "p99") * 1e3, 2),
        "p99_ratio": round(median("with", "p99") / median("without", "p99"), 2),
    }


def speed(client: Client, keys: int) -> float:
    """Return about how many rows per second a job without checkpoints processes; the first run is a warm-up."""
    rows = max(SPEED_ROWS, 4 * keys)
    return [run(client, InTurn(keys, rows), None, "")["rows_per_s"] for _ in range(2)][-1]


def throughput(client: Client, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure rows per second with and without checkpoints."""
    large = given.large_keys, given.large_seconds, "10s"
    for keys, seconds, interval in ((KEYS, given.seconds, "1s"), large):
        source = InTurn(keys, round(speed(client, keys) * seconds))
        yield {"keys": keys, **_only("p99", alternate(client, given.runs, source, interval))}


def latency(client: Client, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure p99 at half of the throughput with and without checkpoints."""
    rate = given.rate or speed(client, KEYS) / 2
    source = InTurn(KEYS, round(rate * given.seconds), rate=rate)
    yield {"keys": KEYS, "rate": round(rate), **_only("throughput", alternate(client, given.runs, source, "1s"))}


def _only(other: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without the figures of the other measurement."""
    words = {"p99": ("p99",), "throughput": ("throughput", "rows_per_s")}[other]
    return {name: value for name, value in line.items() if not any(word in name for word in words)}


class Marks:
    """A sink's function that appends the time of each batch to a file."""

    def __init__(self, path: str):
        self.path = path

    def __call__(self, rows: pa.Table) -> None:
        """Append the time."""
        with Path(self.path).open("a") as file:
            file.write(f"{time.time()}\n")


def filled_job(client: Client, folder: str, state_mb: float) -> tuple[de.Job, float]:
    """Start a job that fills its state, and then gets few rows; returns it, and the MB that a restart reads."""
    keys = round(state_mb * 1e6 / KEY_BYTES)
    topology = de.Topology("restarted")
    # Batches of all keys fill the state; small ones follow at a rate.
    filled = topology.source("filled", InTurn(keys, keys // BATCH * BATCH + BATCH, parallel=1))
    paced = topology.source("paced", InTurn(keys, 10**9, parallel=1, rate=2_000.0, batch=20))
    per_key = filled.union(paced).key_by("key").compute(AGGREGATES, name="per_key", executors=1)
    per_key.filter(lambda rows: np.asarray(rows["rows"]) > 0).sink(de.sinks.Call(Marks(f"{folder}/marks")), name="out")
    job = de.submit(
        topology, client, checkpoint=f"{folder}/checkpoints", checkpoint_interval="1s", restart_attempts=1000,
        cores={"per_key": 1},
    )  # fmt: skip
    wait_for(lambda: job.metrics()["rows"].sum() > keys, "the state is filled")
    job.checkpoint()
    manifest = Catalog(CheckpointFolder(f"{folder}/checkpoints")).load()
    return job, sum(file.nbytes for chain in manifest.state("per_key").chains for file in chain.files) / 1e6


def doomed(folder: str, state_mb: float) -> None:
    """Run the job on a cluster in this process until it is killed."""
    with dask.config.set(SETTINGS), local_cluster() as cluster, Client(cluster) as client:
        _, size = filled_job(client, folder, state_mb)
        (Path(folder) / "ready").write_text(str(size))
        while True:
            time.sleep(1)


def resume(client: Client, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill the process of a scheduler; measure until the job has resumed on another cluster, and a sink gets rows."""
    first, running, size = [], [], 0.0
    for _ in range(given.restarts):
        with tempfile.TemporaryDirectory() as folder:
            ready, marks = Path(folder) / "ready", Path(folder) / "marks"
            arguments = [__file__, "--doomed", folder, "--state-mb", str(given.state_mb)]
            process = subprocess.Popen([sys.executable, *arguments], start_new_session=True)
            try:
                size = float(wait_for(lambda: ready.exists() and ready.read_text(), "the job runs"))  # noqa: B023
                # Its workers go on for a moment, as those of a lost machine would.
                process.kill()
                killed = time.time()
                job = de.resume(f"{folder}/checkpoints", client)
                wait_for(lambda: job.status == "running", "the job runs again")  # noqa: B023
                running.append(time.time() - killed)
                began = time.time()
                # The workers of the killed scheduler have no lease by now.
                wait_for(lambda: any(at > began for at in map(float, marks.read_text().split())), "a row")  # noqa: B023
                first.append(time.time() - killed)
                job.stop()
                job.forget()
            finally:
                process.kill()
                process.wait()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    yield {
        "resumptions": len(first),
        "state_mb": round(size, 1),
        "kill_to_running_p50_s": round(statistics.median(running), 2),
        "kill_to_first_row_p50_s": round(statistics.median(first), 2),
        "kill_to_first_row_max_s": round(max(first), 2),
    }


def restart(client: Client, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill the home of an executor again and again; measure until the sink gets rows again."""
    with tempfile.TemporaryDirectory() as folder:
        marks = f"{folder}/marks"
        job, size = filled_job(client, folder, given.state_mb)
        took = [_kill_home(client, job, marks) for _ in range(given.restarts)]
        job.stop()
        job.forget()
    yield {
        "restarts": len(took),
        "state_mb": round(float(size), 1),
        "kill_to_first_row_p50_s": round(statistics.median(took), 3),
        "kill_to_first_row_p99_s": round(float(np.quantile(took, 0.99, method="higher")), 3),
    }


def _kill_home(client: Client, job: de.Job, marks: str) -> float:
    workers = len(client.scheduler_info()["workers"])
    generation, home = job._describe().generation, job.assignment()["home"][0]
    os.kill(client.run(os.getpid, workers=[home])[home], signal.SIGKILL)
    killed = time.time()
    wait_for(lambda: job._describe().generation > generation, "the job restarts")
    # The killed process writes no more, and the sink's other instances end before the next generation begins.
    began = time.time()

    def first() -> list[float]:
        return [at for at in map(float, Path(marks).read_text().split()) if at > began]

    taken = min(wait_for(first, "a row arrives")) - killed
    before = complete(job)["number"].max()
    wait_for(lambda: complete(job)["number"].max() > before, "another checkpoint is complete")
    wait_for(lambda: len(client.scheduler_info()["workers"]) >= min(2, workers), "the worker is back")
    return taken


def nbytes(client: Client, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the bytes of checkpoints by the share of the keys that have changed."""
    shares = [share for share in (0.01, 0.1, 1.0) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        topology = de.Topology("written")
        rows = topology.source("rows", Phases(given.bytes_keys, shares, folder))
        rows.key_by("key").compute(AGGREGATES, name="per_key", executors=2)
        job = de.submit(topology, client, checkpoint=f"{folder}/checkpoints", checkpoint_interval="1h")
        sizes, read = [], 0
        for number, share in enumerate([1.0, *shares]):
            (Path(folder) / str(number)).touch()
            read += round(given.bytes_keys * share)
            wait_for(lambda: job.metrics()["rows"].sum() >= read, "the rows are processed")  # noqa: B023
            job.checkpoint()
            sizes.append(float(complete(job).iloc[-1]["nbytes"]) / 1e6)
        job.stop()
        job.forget()
    for share in dict.fromkeys(shares):
        mean = statistics.mean(size for size, one in zip(sizes[1:], shares, strict=True) if one == share)
        line = {"keys": given.bytes_keys, "changed": share, "full_mb": round(sizes[0], 2), "mean_mb": round(mean, 2)}
        yield {**line, "amplification": round(mean / (share * sizes[0]), 2)}


MEASURES = {"throughput": throughput, "latency": latency, "restart": restart, "resume": resume, "bytes": nbytes}


def local_cluster() -> LocalCluster:
    """Return a cluster of two workers of one thread each."""
    return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", choices=MEASURES, default=[*MEASURES])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--large-keys", type=int, default=1_000_000)
    parser.add_argument("--large-seconds", type=float, default=16.0, help="of a run with so many keys, about")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each other run, about")
    parser.add_argument("--rate", type=float, help="rows per second for latency; half of the throughput by default")
    parser.add_argument("--state-mb", type=float, default=50.0)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--bytes-keys", type=int, default=200_000)
    parser.add_argument("--doomed", metavar="FOLDER", help="run the job of `resume` until this process is killed")
    given = parser.parse_args()
    if given.doomed:
        doomed(given.doomed, given.state_mb)
    for name in given.measure:
        with (
            dask.config.set(SETTINGS),
            local_cluster() as cluster,
            Client(cluster) as client,
        ):
            for line in MEASURES[name](client, given):
                print(json.dumps({"benchmark": "checkpoints", "measure": name, **line}), flush=True)


if __name__ == "__main__":
    main()

"""Rows per second of a whole job whose state is several times as large as the memory of its worker, with checkpoints.

One worker process with a memory limit; Dask's nanny restarts it if it exceeds the limit, which fails the benchmark.
The state is filled with one row for each key. Then rows of random keys follow, uniform and with Zipf's distribution of
exponent 1, for `--seconds` each: once with the files in the page cache of the system, and once while their pages are
evicted every 200 ms (`cold`), as on a machine without other memory. Each step prints one JSON line; `held` is the
longest time for which a checkpoint held the input. At the end the state is compared with the number of rows sent;
with `--kill` the process is killed before, and the job restarts.

    python benchmarks/state_beyond_memory.py [--memory-mb 480] [--times 10] [--value-bytes 1000] [--seconds 10]
        [--interval 10] [--batch 1024] [--kill] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster, Worker

import dask_elastic as de
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.restore import state_batches
from dask_elastic.state import decode
from dask_elastic.state.disk import UnnamedFiles
from dask_elastic.topology.source import Source, SourceContext

OTHER_BYTES = 130
"""About what a key takes on disk beside its value: record, index, key, and checkpoint marks."""

STRIDE = 7_368_787
SETTINGS = {"distributed.deploy.lost-worker-timeout": "1 hour"}
"""Dask's local cluster removes a killed worker permanently if it is not back within some seconds."""


class Rows(Source):
    """Yields each key once, then rows of random keys by the word in a file, until that says "end"."""

    def __init__(self, keys: int, batch: int, value_bytes: int, word: str):
        self.keys, self.batch, self.value_bytes, self.word = keys, batch, value_bytes, word

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Yield the batches; the offset is the number of the next one."""
        number = context.offset if isinstance(context.offset, int) else 0
        filled = -(-self.keys // self.batch)
        while not context.stopping():
            word = "fill" if number < filled else Path(self.word).read_text()
            if word == "end":
                return
            if word == "wait":
                time.sleep(0.05)
                continue
            yield self.batch_of(number, word), number + 1
            number += 1

    def batch_of(self, number: int, word: str) -> pa.RecordBatch:
        """Return the batch of a number."""
        random = np.random.default_rng(number)
        if word == "fill":
            keys = np.arange(number * self.batch, min(self.keys, (number + 1) * self.batch)) * STRIDE % self.keys
            values = [f"{key:020d}" + "x" * (self.value_bytes - 20) for key in keys.tolist()]
        else:
            drawn = random.random(self.batch)
            ranks = drawn * self.keys if word == "uniform" else np.exp(drawn * np.log(self.keys)) - 1
            keys = np.minimum(ranks.astype(np.int64), self.keys - 1) * STRIDE % self.keys
            values = [None] * len(keys)
        return pa.record_batch({"key": keys, "value": pa.array(values, pa.string())})


def keep(batch: pa.RecordBatch, state: Any) -> None:
    """Count the rows of each key, and keep its first value."""
    state.set("rows", state.get("rows") + state.grouping.sizes)
    values = batch["value"].take(pa.array(state.first))
    if values.null_count == 0:
        state.set("value", values)


async def evict(dask_worker: Worker) -> float:
    """Evict the pages of all files of state from the page cache; returns how many GB these have."""
    return await asyncio.to_thread(evict_pages, dask_worker.plugins["dask-elastic-worker"].runtime.state_files)


def evict_pages(files: UnnamedFiles) -> float:
    """Write what is dirty to the disk, and evict all pages; returns how many GB the files have."""
    files.unmap()
    for file in files._files():
        os.fdatasync(file._descriptor)
        os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return float(files.nbytes / 1e9)


class Cold:
    """Evicts pages all the time while it is entered."""

    def __init__(self, client: Client, enabled: bool):
        self.client, self.enabled = client, enabled
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self.client.run(evict)

    def __enter__(self) -> None:
        if self.enabled:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self.enabled:
            self._thread.join()


def wait_for(found: Callable[[], Any], what: str, patience: float = 900.0) -> Any:
    """Poll until there is a result."""
    deadline = time.monotonic() + patience
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:g} s: {what}")
        time.sleep(0.1)
    return answer


class Run:
    """The job, and what is printed about it."""

    def __init__(self, client: Client, job: de.Job, word: Path):
        self.client, self.job, self.word = client, job, word
        self.pids = client.run(os.getpid)

    def rows(self) -> int:
        """Return the rows that were processed in this generation."""
        return int(self.job.metrics()["rows"].sum())

    def taken(self) -> Any:
        """Return the job's checkpoints."""
        return self.job.checkpoints()

    def measured(self, step: str, until: Callable[[], bool]) -> dict[str, Any]:
        """Return what happened until a condition holds."""
        before, began, rows = len(self.taken()), time.monotonic(), self.rows()
        peak = 0
        while not until():
            found = self.client.run(resident)
            peak = max([peak, *found.values()])
            assert self.client.run(os.getpid) == self.pids, "the worker was restarted: it exceeded its memory"
            time.sleep(0.3)
        seconds, rows = time.monotonic() - began, self.rows() - rows
        taken = self.taken().iloc[before:]
        done = taken[taken["error"].isna()]
        return {
            "step": step,
            "rows_per_s": round(rows / seconds),
            "checkpoints": len(done),
            "failed_checkpoints": [str(error)[:200] for error in taken["error"].dropna()],
            "longest_held_s": round(float(done["held"].max()), 2) if len(done) else None,
            "longest_checkpoint_s": round(float(done["seconds"].max()), 1) if len(done) else None,
            "most_mb_in_checkpoint": round(float(done["nbytes"].max()) / 1e6) if len(done) else None,
            "most_resident_mb": round(peak / 1e6),
        }


def resident(dask_worker: Worker) -> int:
    """Return the bytes that count for the worker's limit."""
    return int(dask_worker.monitor.proc.memory_info().rss)


def show(line: dict[str, Any]) -> None:
    """Print a line."""
    print(json.dumps({"benchmark": "state_beyond_memory", **line}), flush=True)


def counted(folder: str, keys: int) -> int:
    """Return the rows that the state of the newest checkpoint has counted; checks its keys and values."""
    checkpoints = CheckpointFolder(folder)
    state = Catalog(checkpoints).load().state("kept")
    rows = np.zeros(keys, np.int64)
    # Batch by batch, the later ones replace the earlier ones: the parts of `scan_state` read each file many times.
    for _, batch in state_batches(checkpoints, state, 0, state.executors):
        if batch is None:
            continue
        found = decode(batch)
        key = found.keys["key"].to_numpy()
        named = dict(zip((field.name for field in found.fields), found.values, strict=True))
        rows[key] = named["rows"]
        for one, value in zip(key[:20].tolist(), named["value"][:20].tolist(), strict=True):
            assert value.startswith(f"{one:020d}"), (one, value[:30])
    assert (rows > 0).all(), f"{np.count_nonzero(rows == 0)} keys are missing"
    return int(rows.sum())


def steps(client: Client, given: argparse.Namespace, folder: Path) -> None:
    """Run the job and print."""
    keys = round(given.times * given.memory_mb * 1e6 / (OTHER_BYTES + given.value_bytes))
    word, checkpoints = folder / "word", str(folder / "checkpoints")
    word.write_text("wait")
    topology = de.Topology("beyond")
    rows = topology.source("rows", Rows(keys, given.batch, given.value_bytes, str(word))).key_by("key")
    kept = rows.compute(
        keep, name="kept", state={"rows": pa.int64(), "value": pa.string()}, executors=1, store=given.store
    )
    kept.sink(de.sinks.Parquet(str(folder / "out")))
    job = de.submit(
        topology, client, cores={"kept": 1}, latency_target=None, channel_window="8MiB", checkpoint=checkpoints,
        checkpoint_interval=f"{given.interval:g}s", restart_attempts=3,
    )  # fmt: skip
    run = Run(client, job, word)
    filled = run.measured("fill", lambda: run.rows() >= keys)
    on_disk = client.run(evict)
    show({**filled, "keys": keys, "memory_mb": given.memory_mb, "on_disk_gb": round(sum(on_disk.values()), 2)})
    for cold in (False, True):
        for kind in ("uniform", "zipf"):
            with Cold(client, cold):
                word.write_text(kind)
                end = time.monotonic() + given.seconds
                found = run.measured(kind, lambda: time.monotonic() > end)  # noqa: B023
            word.write_text("wait")
            show({**found, "cold": cold})
    if given.kill:
        show(killed(run, checkpoints, keys, given.batch))
    else:
        job.checkpoint()
        word.write_text("end")
        job.wait(progress=False)
        show({"step": "end", "rows": counted(checkpoints, keys)})


def killed(run: Run, checkpoints: str, keys: int, batch: int) -> dict[str, Any]:
    """Kill the worker; returns how long its state takes to come back, and checks it."""
    client, job = run.client, run.job
    job.checkpoint()
    [pid] = client.run(os.getpid).values()
    generation, before = job._describe().generation, counted(checkpoints, keys)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: job._describe().generation > generation, "the job restarts")
    number = run.taken()["number"].max()
    wait_for(
        lambda: run.taken()["error"].isna().sum() and run.taken()["number"].max() > number, "the state is restored"
    )
    seconds = time.monotonic() - began
    run.pids = client.run(os.getpid)
    run.word.write_text("uniform")
    wait_for(lambda: run.rows() > 0, "rows are processed")
    run.word.write_text("end")
    job.wait(progress=False)
    after = counted(checkpoints, keys)
    assert client.run(os.getpid) == run.pids, "the worker was restarted again: it exceeded its memory"
    assert (after - keys) % batch == 0, (before, after)
    assert after > before, (before, after)
    return {"step": "kill", "restored_and_checkpointed_after_s": round(seconds, 1), "rows": after}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-mb", type=int, default=480, help="the memory limit of the worker")
    parser.add_argument("--times", type=float, default=10, help="the size of the state by this limit")
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--interval", type=float, default=10, help="seconds between checkpoints")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--kill", action="store_true", help="at last kill the worker, and restore the state")
    parser.add_argument("--store", default="disk", choices=("disk", "auto"))
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        dask.config.set({**SETTINGS, "temporary-directory": folder}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit=given.memory_mb * 10**6, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        steps(client, given, Path(folder))


if __name__ == "__main__":
    main()

"""Clusters side by side, one of them with an idle job: their CPU time in the same windows.

An idle cluster uses more CPU time than an idle job adds, and its share differs by half from one minute to the next on a
shared machine. So the clusters run at the same time, each in a process of its own with its client and scheduler.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from _cpu import ClusterCpu
from distributed import Client, LocalCluster

import dask_elastic as de

KINDS = ("bare", "without", "with")
"""A cluster without dask_elastic, one that hosts it but has no job, and one with an idle job."""

_barrier: threading.Barrier


@dataclass(frozen=True)
class IdleSetting:
    """The clusters and the windows.

    Parameters
    ----------
    executors : int
        Executors of the idle job.
    workers, threads : int
        Workers of a cluster, and threads of each one.
    settle : float
        Seconds without rows before the first window.
    seconds : float
        Seconds of a window.
    windows : int
        Number of windows.
    """

    executors: int = 20
    workers: int = 2
    threads: int = 2
    settle: float = 10.0
    seconds: float = 10.0
    windows: int = 3


@dataclass(frozen=True)
class Cores:
    """CPU seconds per second of the workers, and of the process of client and scheduler."""

    workers: float
    scheduler: float

    @property
    def total(self) -> float:
        """Those of all processes of the cluster."""
        return self.workers + self.scheduler


def side_by_side(setting: IdleSetting, kinds: tuple[str, ...] = KINDS) -> dict[str, list[Cores]]:
    """Return the cores of one cluster of each kind in each window."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(kinds))
    with ProcessPoolExecutor(len(kinds), context, initializer=_share, initargs=(barrier,)) as pool:
        running = {kind: pool.submit(_cluster, kind, setting) for kind in kinds}
        errors = [error for found in running.values() if (error := found.exception()) is not None]
    # A cluster that fails breaks the barrier for the others: its own error is the cause.
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return {kind: found.result() for kind, found in running.items()}


def _share(barrier: threading.Barrier) -> None:
    global _barrier
    _barrier = barrier


def _cluster(kind: str, setting: IdleSetting) -> list[Cores]:
    """Run a cluster and measure it whenever the others do."""
    try:
        with (
            LocalCluster(
                n_workers=setting.workers, threads_per_worker=setting.threads, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            job = None if kind == "bare" else _idle_job(client, setting.executors)
            if job and kind == "without":
                job.forget()
            found = [_window(client, setting, number == 0) for number in range(setting.windows)]
            if job and kind == "with":
                job.forget()
            return found
    except BaseException:
        # The other clusters would wait for this one.
        _barrier.abort()
        raise


def _window(client: Client, setting: IdleSetting, first: bool) -> Cores:
    _barrier.wait()
    if first:
        time.sleep(setting.settle)
    cpu = ClusterCpu(client)
    time.sleep(setting.seconds)
    found = Cores(cpu.cores(), cpu.own_cores())
    _barrier.wait()
    return found


def _idle_job(client: Client, executors: int) -> de.Job:
    """Start a job that a program feeds, and send it some rows."""
    topology = de.Topology("idle")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()})))
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", executors=executors)
    counted.sink(de.sinks.Call(len), name="out")
    job = de.submit(topology, client)
    job.send(pa.table({"k": range(1_000)}))
    return job

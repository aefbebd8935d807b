"""Real Dask clusters: one that most tests share, and waiting for conditions with a deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

import dask_elastic as de

pytest.register_assert_rewrite("counting_jobs", "numbered_jobs")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "moves")]
import counting_jobs  # noqa: E402, F401  found by its folder
import numbered_jobs  # noqa: E402, F401
import slow_jobs  # noqa: E402, F401

del sys.path[:2]

SECONDS = 240


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """Return a function that polls a condition until it is true, and fails after a timeout."""

    def wait(condition: Callable[[], Any], what: str, timeout: float = SECONDS) -> Any:
        deadline = time.monotonic() + timeout
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.02)
        return answer

    return wait


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three worker processes of two threads, shared by all tests that leave it intact."""
    with LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(
    cluster: LocalCluster, threads_of_jobs: Callable[[Client], list[str]], wait_until: Callable[..., Any]
) -> Iterator[Client]:
    """A client of the shared cluster; the test's jobs are forgotten afterwards, and must leave no thread behind."""
    with Client(cluster) as made:
        yield made
        for job in de.jobs(made):
            job.forget()
        wait_until(lambda: threads_of_jobs(made) == [], "the threads of all jobs have ended", timeout=60)


@pytest.fixture(scope="session")
def threads_of_jobs() -> Callable[[Client], list[str]]:
    """Return a function that lists the threads that jobs have on the workers of a client."""

    def names() -> list[str]:
        own = ("elastic-reader", "elastic-writer", "elastic-ticks", "elastic-beats", "elastic-control")
        found = [thread.name for thread in threading.enumerate() if thread.name.startswith("elastic-")]
        return [name for name in found if not name.startswith(own)]

    return lambda client: [name for found in client.run(names).values() for name in found]


@pytest.fixture
def small_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Return a function that starts a cluster of the test's own: one worker process of one thread by default."""
    made: list[LocalCluster] = []

    def start(**options: Any) -> LocalCluster:
        # Where memory is what a test is about, Dask looks at it as often as elsewhere.
        looks = {"distributed.worker.memory.monitor-interval": "100ms"} if "memory_limit" in options else {}
        with dask.config.set(looks):
            cluster = LocalCluster(**{"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", **options})
        made.append(cluster)
        return cluster

    yield start
    for cluster in made:
        cluster.close()


@pytest.fixture
def numbers() -> pa.Table:
    """A thousand rows of ten keys."""
    return pa.table({"k": np.arange(1_000) % 10, "v": np.arange(1_000)})


@pytest.fixture
def held(client: Client) -> de.Job:
    """A job that runs until it is stopped."""
    topology = de.Topology("held")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()})))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted").sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client, cores={"counted": 1})

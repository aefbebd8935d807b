"""An in-process cluster, and fixtures that run commands against it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.main import elastic

SECONDS = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as made:
        yield made
        for job in de.jobs(made):
            job.forget()


@pytest.fixture
def address(cluster: LocalCluster) -> str:
    return cluster.scheduler_address


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Return a function that runs ``dask elastic`` with arguments, as Dask's command line does."""

    @click.group()
    def dask() -> None:
        pass

    dask.add_command(elastic)

    def run(*arguments: object, **options: object) -> Result:
        return CliRunner().invoke(dask, ["elastic", *map(str, arguments)], prog_name="dask", **options)

    return run


@pytest.fixture
def wait_until() -> Callable[..., None]:
    def wait(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def endless(client: Client, wait_until: Callable[..., None]) -> Callable[[str], de.Job]:
    """Return a function that starts an endless job of a given name."""

    def numbers() -> Iterator[dict[str, np.ndarray]]:
        while True:
            yield {"key": np.arange(100)}

    def start(name: str) -> de.Job:
        topology = de.Topology(name)
        source = topology.source("numbers", de.sources.Iterable(numbers, rate=5_000))
        source.key_by("key").compute({"count": agg.Count()}, name="per_key", executors=1)
        job = de.submit(topology, client)
        wait_until(lambda: job.metrics()["rows"].sum() > 0, "the first rows")
        return job

    return start

"""A Spark session, which takes seconds to start, and a Dask cluster, shared by the tests of this directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from distributed import Client, LocalCluster
from pyspark.sql import SparkSession

import dask_elastic as de
from dask_elastic.spark.spark_session import session

SMALL = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a session with two local cores."""
    running = session("tests", master="local[2]", config=SMALL)
    yield running
    running.stop()


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Return a folder with links to Spark's files: its local cluster writes there what executors print."""
    made = tmp_path / "spark-home"
    made.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (made / part.name).symlink_to(part)
    return made


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """Return a function that waits until a condition is true, and fails after a timeout."""

    def wait(condition: Callable[[], Any], what: str, timeout: float = 240) -> Any:
        deadline = time.monotonic() + timeout
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.02)
        return answer

    return wait


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes, shared by all tests that do not kill them."""
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the shared cluster; the test's jobs are forgotten afterwards."""
    with Client(cluster) as made:
        yield made
        for job in de.jobs(made):
            job.forget()

"""Data for tests: the real recordings where available, otherwise seeded stand-ins of the same schema."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed.utils import get_mp_context
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
import last_failed
import stand_ins

sys.path.pop(0)

pytest_configure = last_failed.register

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))

# On a busy machine, a worker that lives sends no heartbeat for seconds. Tests of lost workers set a shorter timeout.
os.environ.setdefault("DASK_ELASTIC__HEARTBEAT_TIMEOUT", "60s")

# Tests of remote tasks have few rows, whose shards would stay at home.
os.environ.setdefault("DASK_ELASTIC__LIGHT_LOAD", "0")

# A LocalCluster gives a worker up that is missing so long after a loss, also because it was killed once more.
os.environ.setdefault("DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT", "1 hour")

# An idle worker of Dask spends most of its time on a profile of tasks, which jobs do not have, on its ticks, and on
# looks at its memory, as its nanny does. The clusters of `make examples` have all of these, as those of users do.
# Clusters of tests with a memory limit have the usual looks at memory.
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL", "500ms")
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL", "1s")

# Dask has read the environment when it was imported above.
dask.config.refresh()

# Workers of clusters that tests start in their own process, and Python workers of Spark, have then imported what they
# need. The clusters of pages, examples, commands and the demonstration are those of a user: their workers are new
# interpreters.
PRELOADED = Path(__file__).parent / "preloaded"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PRELOADED), os.environ.get("PYTHONPATH")]))
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
get_mp_context().set_forkserver_preload(["dask_workers"])

# A property is tested with the same examples in each run, as the simulator is with the same seeds; `make properties`
# tests it with others. A test that takes long, because the machine is slow or busy, does not fail.
settings.register_profile("any speed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "same examples", settings.get_profile("any speed"), max_examples=50, derandomize=True, database=None
)
settings.load_profile("any speed" if os.environ.get("ELASTIC_OTHER_EXAMPLES") else "same examples")

REAL_DATA = Path(__file__).parents[2] / "shared" / "data"

COSTLY = {"spark", "cluster", "built", "executed"}
"""Fixtures that start processes and that several tests share."""


# First: pytest-xdist reads the groups in the same hook.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Let tests of a file that share a costly fixture run in one process of pytest-xdist, and others in any.

    A cluster starts in half a second, so each process may have one. A Spark session takes ten times as long: all tests
    in tests/spark share it.
    """
    groups = {}
    for item in items:
        if costly := COSTLY.intersection(getattr(item, "fixturenames", ())):
            place = item.path.relative_to(Path(__file__).parent)
            groups[item] = place.parts[0] if "spark" in costly else place.with_suffix("").as_posix()
            item.add_marker(pytest.mark.xdist_group(groups[item]))
    yield
    if not getattr(config.option, "loadgroup", False):
        return
    for item, group in groups.items():
        # pytest-xdist 3.8 adds the group to an attribute that pytest 9.2 no longer has.
        if hasattr(item, "_id") and not item.nodeid.endswith(f"@{group}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def pytest_collection_finish() -> None:
    """Let the garbage collector leave out what stays until the end: modules, and thousands of collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def ended_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs resume soon: the test has ended all workers of their earlier run, whose leases are as long as above."""
    monkeypatch.setattr("dask_elastic.runtime.scheduler.job_starts.lease_seconds", lambda record, timeout: 2.0)


DAEMON_TRACEBACK = re.compile(
    r"Traceback [^\n]*\n"
    r"  File \"[^\"]*pyspark/daemon\.py\"[^\n]*\n(?:    [^\n]*\n)*"
    r"(?:  File \"[^\"]*pyspark/\w+\.py\"[^\n]*\n(?:    [^\n]*\n)*)*"
    r"(?:BrokenPipeError|ConnectionResetError|EOFError)(?:: [^\n]*)?\n"
)


@pytest.fixture(scope="session")
def without_daemon_tracebacks() -> Callable[[str], str]:
    """Return a function that removes what PySpark's daemon prints when Java closes the connection to its workers."""
    return lambda printed: DAEMON_TRACEBACK.sub("", printed)


WORK_STEPS = 1_500
USUAL_SECONDS = 0.001
"""Seconds that `fixed_work` takes on the machine for which bounds of time in tests were chosen."""


@pytest.fixture(scope="session")
def slowness() -> Callable[[], float]:
    """Return a function that measures by which factor this machine is slower now; a bound of time is multiplied by it.

    At least 1. The quickest of several runs counts, in processor time, because other processes share the machine.
    """

    def measure() -> float:
        spent = []
        for _ in range(20):
            start = time.thread_time()
            fixed_work()
            spent.append(time.thread_time() - start)
        return max(1.0, min(spent) / USUAL_SECONDS)

    return measure


def fixed_work() -> int:
    """Do the kind of work that planning does: loops in Python over small arrays."""
    values, found = np.arange(64.0), 0
    for number in range(WORK_STEPS):
        found += int(values.argmax()) + len({number: values[number % 64]})
    return found


def find_recording(name: str) -> Path | None:
    """Look in $ELASTIC_TEST_DATA, else beside the repository."""
    folder = os.environ.get("ELASTIC_TEST_DATA")
    if folder and not Path(folder).is_dir():
        raise FileNotFoundError(f"ELASTIC_TEST_DATA is {folder!r}, which is no directory")
    path = (Path(folder) if folder else REAL_DATA) / name
    return path if path.is_file() else None


RECORDINGS = [name for name in stand_ins.SCHEMAS if find_recording(name) is not None]


@pytest.fixture(scope="session")
def stand_in() -> Callable[[str], pa.Table]:
    """Return a function that makes the stand-in of a recording."""
    return stand_ins.make_stand_in


@pytest.fixture(scope="session", params=["recorded", "stand-in"] if RECORDINGS else ["stand-in"])
def recording(request: pytest.FixtureRequest) -> Callable[[str], Path | None]:
    """Return a function that finds a recording, or returns None where a stand-in is to be used.

    A test that uses it, also by way of another fixture, runs twice where there are recordings: with the recording, and
    with the stand-in, which is all that most machines have.
    """
    return find_recording if request.param == "recorded" else lambda name: None


@pytest.fixture(scope="session")
def data_path(
    recording: Callable[[str], Path | None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function from a name such as "flights_nyc2013/flights.parquet" to a file."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        real = recording(name)
        if real is not None:
            return real
        if name not in made:
            made[name] = tmp_path_factory.mktemp("stand_in") / Path(name).name
            pq.write_table(stand_ins.make_stand_in(name), made[name])
        return made[name]

    return path

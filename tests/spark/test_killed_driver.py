"""Spark's driver, its executors, or a Dask worker die between the steps of an epoch: each row is counted once.

A query for each step writes to a source of its own, and stops there in its second epoch; then one process is killed for
all of them. The short form kills the driver. ``make faults`` kills the others, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import dask
import psutil
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.spark import into
from dask_elastic.spark.staging_connection import call_scheduler
from dask_elastic.spark.target import Target

SCRIPT = Path(__file__).with_name("gated_driver.py")
EVERY = bool(os.environ.get("DASK_ELASTIC_EVERY_CRASH"))
"""Whether to kill all kinds of processes at every step."""

STEPS = ("staging", "staged", "recorded", "offered", "answered", "logged")
"""One of two tasks has staged its rows; both have; the record of the ledger is written; the copy is on the queue;
Spark's process for commits has the answer; Spark has logged its commit."""

SHORT = ("recorded", "answered")
GATED, EPOCHS, FILES, ROWS, KEYS = 1, 3, 2, 40, 5
SECONDS = 400
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
QUICK = {"elastic.heartbeat-interval": "500ms", "elastic.heartbeat-timeout": "2s"}


def numbers(epoch):
    """The values of an epoch, by file."""
    first = epoch * FILES * ROWS
    return [range(first + file * ROWS, first + (file + 1) * ROWS) for file in range(FILES)]


def row(step, number):
    return {"k": STEPS.index(step) * KEYS + number % KEYS, "v": number * number % 1000 + number * 1000}


def arrive(folder, steps, epochs):
    """Let the files of some epochs appear for the queries of all steps."""
    for step in steps:
        place = folder / step / "files"
        place.mkdir(parents=True, exist_ok=True)
        for epoch in epochs:
            for file, values in enumerate(numbers(epoch)):
                hidden = folder / "writing"
                hidden.write_text("\n".join(json.dumps(row(step, number)) for number in values))
                os.utime(hidden, (epoch * FILES + file + 1,) * 2)
                hidden.rename(place / f"{epoch}-{file}.json")


def expected(steps):
    found = {}
    for step in steps:
        for epoch in range(EPOCHS):
            for number in (number for values in numbers(epoch) for number in values):
                added = row(step, number)
                found.setdefault(added["k"], []).append(added["v"])
    return {key: (len(values), sum(values), min(values), max(values)) for key, values in found.items()}


class Gates:
    """Stops the commits of the second epoch on the scheduler, each at the step after which its source is named."""

    def __init__(self, folder):
        self.folder = folder
        self.released = threading.Event()

    def reached(self, step):
        """Whether the query of a step has come there."""
        if step == "staging":
            complete = [path for path in self._spooled(step) if f"-{GATED}-0-" in path.name and path.name[0] != "."]
            return bool(complete) and (self.folder / "staging.reached").exists()
        if step == "logged":
            return (self.folder / step / "checkpoint" / "commits" / str(GATED)).exists()
        return (self.folder / f"{step}.reached").exists()

    def _spooled(self, step):
        return (self.folder / "checkpoints" / "epochs" / step / "rows").glob("*.arrows")

    def release(self):
        """Let everything go on."""
        (self.folder / "released").touch()
        self.released.set()

    def _stops(self, step, source, epoch):
        mark = self.folder / f"{step}.reached"
        if source != step or epoch != GATED or mark.exists():
            return False
        mark.touch()
        return True

    def install(self, monkeypatch):
        known, commit, append = EpochCommits._known, EpochCommits._commit, EpochSpool.append

        async def until_released():
            while not self.released.is_set():
                await asyncio.sleep(0.02)

        async def stopping_before(commits, record, source, call):
            if self._stops("staged", call.source, call.epoch):
                await until_released()
            return await known(commits, record, source, call)

        async def stopping_behind(commits, record, source, call):
            await commit(commits, record, source, call)
            if self._stops("offered", call.source, call.epoch):
                await until_released()

        def stopping_in_thread(spool, record):
            append(spool, record)
            if spool._place.endswith("/recorded") and self._stops("recorded", "recorded", record.epoch):
                assert self.released.wait(SECONDS)

        monkeypatch.setattr(EpochCommits, "_known", stopping_before)
        monkeypatch.setattr(EpochCommits, "_commit", stopping_behind)
        monkeypatch.setattr(EpochSpool, "append", stopping_in_thread)


class Drivers:
    """The processes of Spark."""

    def __init__(self, folder, spark_home):
        self.folder = folder
        self.running = {}
        self._spark_home = spark_home

    def launch(self, name):
        """Start a driver, which waits for its file. What it leaves in its temporary folder, pytest removes."""
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ["PYTHONPATH"], *sys.path])),
            "SPARK_HOME": str(self._spark_home),
            "TMPDIR": str(temporary),
        }
        log = (self.folder / f"{name}.log").open("wb")
        self.running[name] = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.folder), name],
            stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip
        log.close()

    def start(self, name):
        (self.folder / f"{name}.starts").touch()

    def javas(self, name):
        """The processes of Java of a driver: its own, then those of executors."""
        found = []
        for process in psutil.Process(self.running[name].pid).children(recursive=True):
            # Helpers of Java and Python end at any moment.
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "java":
                    found.append(("CoarseGrainedExecutorBackend" in " ".join(process.cmdline()), process))
        return [process for _, process in sorted(found, key=lambda kind_and_process: kind_and_process[0])]

    def kill(self, name):
        """Kill the driver: the program, and Spark's Java. What remains of its tasks ends by itself, or not."""
        own, *_ = self.javas(name)
        os.kill(own.pid, signal.SIGKILL)
        self.running[name].kill()
        self.running[name].wait()

    def ended(self, name):
        """Wait until a driver has ended without an error."""
        assert self.running[name].wait(SECONDS) == 0, (self.folder / f"{name}.log").read_text()[-4000:]

    def close(self):
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def drivers(tmp_path, spark_home):
    made = Drivers(tmp_path, spark_home)
    yield made
    made.close()


@pytest.fixture
def own_client():
    """A client of a cluster whose workers are killed and restarted."""
    with (
        dask.config.set({**QUICK, "distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def submitted(client, folder, steps):
    topology = de.Topology("driven")
    first, *others = (topology.source(step, de.sources.Spark(SCHEMA)) for step in steps)
    rows = first.union(*others)
    bounds = {"least": de.aggregate.Min("v"), "most": de.aggregate.Max("v")}
    counted = {"rows": de.aggregate.Count(), "sum": de.aggregate.Sum("v"), **bounds}
    rows.key_by("k").compute(counted, name="per_key", executors=2)
    options = {"checkpoint_interval": "500ms", "restart_attempts": 100}
    return de.submit(topology, client, checkpoint=folder / "checkpoints", **options)


def kill_at_the_steps(client, drivers, steps, victim, monkeypatch, wait_until):
    """Run the queries until each is at its step, kill the victim, and compare the state at the end."""
    folder = drivers.folder
    gates = Gates(folder)
    gates.install(monkeypatch)
    job = submitted(client, folder, steps)
    arrive(folder, steps, range(GATED + 1))
    plan = {
        "master": "local-cluster[2,2,512]" if victim == "executors" else "local[2]",
        "options": {step: into(job, step) for step in steps},
        "files": FILES,
        "first": row("staging", numbers(GATED)[0][0])["v"],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    drivers.launch("first")
    drivers.start("first")
    if victim == "driver":
        drivers.launch("second")

    def at_their_steps():
        assert drivers.running["first"].poll() is None, (folder / "first.log").read_text()[-4000:]
        return all(gates.reached(step) for step in steps)

    wait_until(at_their_steps, "each query is at its step", SECONDS)
    last = "first"
    if victim == "driver":
        drivers.kill("first")
        last = "second"
    elif victim == "executors":
        _, *executors = drivers.javas("first")
        for process in executors:
            process.kill()
    else:
        target = Target.from_options(into(job, steps[0]))
        home = call_scheduler(target, HandoffPlaces(job.name, steps[0])).places[0]
        os.kill(client.run(os.getpid, workers=[home])[home], signal.SIGKILL)
    gates.release()
    arrive(folder, steps, range(GATED + 1, EPOCHS))
    drivers.start(last)
    (folder / "all-arrived").touch()
    drivers.ended(last)
    job.wait(SECONDS, progress=False)
    table = job.state("per_key").to_arrow().to_pylist()
    assert {each["k"]: (each["rows"], each["sum"], each["least"], each["most"]) for each in table} == expected(steps)


def test_driver_killed_between_the_steps_of_an_epoch(client, drivers, monkeypatch, wait_until):
    steps = STEPS if EVERY else SHORT
    kill_at_the_steps(client, drivers, steps, "driver", monkeypatch, wait_until)


if EVERY:

    @pytest.mark.parametrize("victim", ["executors", "dask worker"])
    def test_executors_or_dask_worker_killed_between_the_steps(own_client, drivers, monkeypatch, wait_until, victim):
        kill_at_the_steps(own_client, drivers, STEPS, victim, monkeypatch, wait_until)

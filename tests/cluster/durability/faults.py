"""Kills and suspends workers of real jobs with checkpoints for a given time: ``make faults KILLS=60``.

One job after the other runs on a local cluster whose nannies restart workers. Every few seconds a random worker is
killed (SIGKILL) or suspended for some seconds (SIGSTOP). Each job must finish, with the state of every key equal to
that of one process, and each row once in its Parquet files. Prints one JSON line per job and one for the whole run, and
ends with exit code 1 at the first job that fails; its folder, with the scheduler's log, is kept then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from distributed import Client, LocalCluster

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import STATE, following, numbered_rows

KEYS = 300
PATIENCE = 180.0
"""Seconds within which a job must complete a checkpoint, and end after its last fault."""

UNPROGRESSED = 4
"""After so many kills without a complete checkpoint in between, the next kill waits for one: slow machines too must
be able to progress."""

SETTINGS = {
    "elastic.heartbeat-interval": "500ms",
    "elastic.heartbeat-timeout": "2s",
    "distributed.deploy.lost-worker-timeout": "1 hour",
}
"""Dask's local cluster removes a killed worker permanently if it is not back within some seconds."""


class Wrong(Exception):
    """A job has lost or repeated rows, does not progress, or has failed."""


class Round:
    """One job, the faults that it survives, and what they cost.

    Parameters
    ----------
    cluster, client
        The cluster.
    seed : int
        Determines the topology, the rows and the faults.
    folder : Path
        Folder for checkpoints and files.
    given : argparse.Namespace
        The options.
    """

    def __init__(self, cluster: LocalCluster, client: Client, seed: int, folder: Path, given: argparse.Namespace):
        self.cluster, self.client, self.folder, self.given = cluster, client, folder, given
        self.seed = seed
        self.random = random.Random(seed)
        self.rows = numbered_rows(int(given.rate * given.job_seconds), keys=KEYS, seed=seed)
        self.kills: list[float] = []
        self.suspended: dict[int, float] = {}
        self.suspensions = 0
        self.took: dict[float, float] = {}
        self.checkpoints: dict[int, Any] = {}
        self.shape = {
            "executors": self.random.choice([1, 2, 3]),
            "remote": self.random.random() < 0.5,
            "interval": self.random.choice(["300ms", "1s", "2s"]),
        }
        self.job = de.submit(
            self._topology(), client, checkpoint=folder / "checkpoints", checkpoint_interval=self.shape["interval"],
            restart_attempts=1000, cores={"followed": 2 if self.shape["remote"] else 1},
        )  # fmt: skip

    def _topology(self) -> de.Topology:
        topology = de.Topology(f"faults-{self.seed}")
        odd = pa.compute.equal(pa.compute.bit_wise_and(self.rows["k"], 1), 1)
        # Two sources with keys of their own: the rows of a key keep their order.
        parts = [self.rows.filter(odd), self.rows.filter(pa.compute.invert(odd))]
        rate = self.given.rate / len(parts)
        first, second = (
            topology.source(f"rows{number}", de.sources.Arrow(part, rate=rate, batch_rows=500))
            for number, part in enumerate(parts)
        )
        keyed = first.union(second).key_by("k")
        out = keyed.compute(following(), name="followed", state=STATE, executors=self.shape["executors"], shards=24)
        out.sink(de.sinks.Parquet(self.folder / "out"), name="out")
        return topology

    # faults

    def run(self, kills: int) -> None:
        """Inject at most so many kills until the job has ended, and check its results."""
        while self.job._describe().live and len(self.kills) < kills:
            self._wait(self.random.uniform(0.5, 1.5) * self.given.every)
            if self._unprogressed() >= UNPROGRESSED:
                self._progress()
            self._strike()
        deadline = time.monotonic() + PATIENCE + self.given.job_seconds
        while (description := self.job._describe()).live:
            if time.monotonic() > deadline:
                raise Wrong(f"the job has not ended: {description.status}, {self._notes()}")
            self._wait(0.5)
        self._continue_all()
        self.job.wait(progress=False)
        self._observe()
        self.check()

    def _unprogressed(self) -> int:
        newest = max((taken.began for taken in self.checkpoints.values() if taken.error is None), default=0.0)
        return sum(at > newest for at in self.kills)

    def _progress(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._unprogressed() and self.job._describe().live:
            if time.monotonic() > deadline:
                raise Wrong(f"no checkpoint within {PATIENCE:g} s after a kill: {self._notes()}")
            self._wait(0.2)

    def _strike(self) -> None:
        nanny = self.random.choice(sorted(self.cluster.workers.values(), key=lambda nanny: str(nanny.name)))
        pid = nanny.pid
        if pid is None or pid in self.suspended:
            return
        suspends = self.random.random() < self.given.suspend
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if suspends else signal.SIGKILL)
            logging.info("fault: %s %s (%s)", "suspend" if suspends else "kill", nanny.worker_address, pid)
            if suspends:
                self.suspensions += 1
                self.suspended[pid] = time.time() + self.random.uniform(1.0, 10.0)
            else:
                self.kills.append(time.time())

    def _wait(self, seconds: float) -> None:
        """Wait; continue suspended workers whose time is over, and note checkpoints."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.1)
            for pid in [pid for pid, end in self.suspended.items() if time.time() > end]:
                self._continue(pid)
        self._observe()

    def _continue(self, pid: int) -> None:
        del self.suspended[pid]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            logging.info("fault: continue %s", pid)

    def _continue_all(self) -> None:
        for pid in [*self.suspended]:
            self._continue(pid)

    def _observe(self) -> None:
        for taken in self.job.checkpoints().itertuples():
            error = taken.error if isinstance(taken.error, str) else None
            self.checkpoints[taken.number] = taken._replace(error=error)

    # results

    def recoveries(self) -> list[float]:
        """Seconds from each kill to the end of the first checkpoint that began after it and is complete."""
        complete = [taken for taken in self.checkpoints.values() if taken.error is None]
        ends = [[taken.began + taken.seconds - at for taken in complete if taken.began > at] for at in self.kills]
        return [min(after) for after in ends if after]

    def check(self) -> None:
        """Compare state and files with those of one process.

        Raises
        ------
        Wrong
            If they differ.
        """
        grouped = self.rows.to_pandas().groupby("k")
        wanted = grouped.agg(
            n=("v", "size"), sum=("v", "sum"), low=("v", "min"), high=("v", "max"), last=("seq", "max")
        )
        # A worker may have been killed after the end of the job, with the state that it kept in memory.
        state = de.read_state(self.folder / "checkpoints", "followed").to_pandas().set_index("k").sort_index()
        if state["faults"].sum():
            raise Wrong(f"{state['faults'].sum()} rows came out of order")
        if not state[wanted.columns].equals(wanted.astype("int64")):
            differs = state[wanted.columns].compare(wanted) if len(state) == len(wanted) else len(state)
            raise Wrong(f"state differs:\n{differs}")
        order = [("k", "ascending"), ("seq", "ascending")]
        written = ds.dataset(self.folder / "out", format="parquet").to_table(columns=["k", "seq"]).sort_by(order)
        expected = self.rows.select(["k", "seq"]).sort_by(order)
        if not written.equals(expected):
            counts = written.group_by(["k", "seq"]).aggregate([([], "count_all")])
            twice = counts.filter(pa.compute.greater(counts["count_all"], 1)).num_rows
            raise Wrong(
                f"files have {written.num_rows} rows, {expected.num_rows} were read; {twice} rows more than once, "
                f"{expected.num_rows - counts.num_rows} are missing"
            )

    def _notes(self) -> str:
        return f"checkpoints {list(self.checkpoints.values())[-5:]}"

    def line(self) -> dict[str, Any]:
        """Return what happened."""
        given_up = sum(taken.error is not None for taken in self.checkpoints.values())
        return {
            "seed": self.seed, **self.shape, "rows": self.rows.num_rows, "kills": len(self.kills),
            "suspensions": self.suspensions, "checkpoints": len(self.checkpoints) - given_up, "given_up": given_up,
        }  # fmt: skip

    def close(self) -> None:
        """Let suspended workers continue, and forget the job."""
        self._continue_all()
        self.job.forget()


@contextlib.contextmanager
def a_cluster(workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    """Start worker processes whose nannies restart them."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=workers, threads_per_worker=2, dashboard_address=None, silence_logs="CRITICAL") as made,
        Client(made, set_as_default=False) as client,
    ):
        yield made, client


def run(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """Run jobs until there were enough kills or the time is over; returns the figures, and whether all were exact."""
    deadline = time.monotonic() + given.seconds
    kills, jobs, restarts, took, exact = 0, 0, 0, [], True
    with a_cluster(given.workers) as (cluster, client):
        while exact and kills < given.kills and time.monotonic() < deadline:
            place = folder / str(given.seed + jobs)
            place.mkdir()
            job = Round(cluster, client, given.seed + jobs, place, given)
            first = job.job._describe().generation
            try:
                job.run(given.kills - kills)
            except Exception:  # a job's failure is any error of the engine; it is printed, and the exit code says so
                traceback.print_exc()
                exact = False
            restarted = job.job._describe().generation - first
            print(json.dumps({**job.line(), "restarts": restarted, "exact": exact}), flush=True)
            kills, jobs, restarts = kills + len(job.kills), jobs + 1, restarts + restarted
            took += job.recoveries()
            job.close()
            if exact:
                shutil.rmtree(place)
    line = {"jobs": jobs, "kills": kills, "restarts": restarts, "exact": exact}
    if took:
        line |= {f"recovery_p{q}_s": round(float(np.quantile(took, q / 100, method="higher")), 2) for q in (50, 99)}
    return line, exact


def main() -> None:
    """Run and print; the exit code is 1 if a job failed or was not exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no job begins later")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between two faults")
    parser.add_argument("--suspend", type=float, default=0.2, help="share of the faults that suspend a worker")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=4_000.0, help="rows per second")
    parser.add_argument("--job-seconds", type=float, default=40.0, help="seconds of rows of each job")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    log = folder / "scheduler.log"
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    line, exact = run(given, folder)
    print(json.dumps(line), flush=True)
    if not exact:
        sys.exit(f"{folder} has the scheduler's log, and the checkpoints and files of the last job")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

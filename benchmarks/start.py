"""What a start costs: CPU time of the import, and time from `submit` to the first row at a sink.

Prints one JSON line per setting, with medians: the CPU seconds that an import takes in a fresh interpreter beyond
`import distributed`, and the seconds from the call of `submit` until the first row has reached a sink, for the first
job of a new cluster ("cold") and for later ones ("warm"), with the CPU seconds of all processes until then. A row is
sent as soon as `submit` returns. All modules are compiled beforehand, as they are where the package is installed.

    python benchmarks/start.py [--runs 5] [--workers 2] [--threads 2]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de
import dask_elastic_plugins as plugins

IMPORTS = ("dask_elastic", "dask_elastic_plugins.worker", "dask_elastic.runtime.worker.node", "dask_elastic.spark")
BASE = {"dask_elastic.spark": "distributed, pyspark.sql"}
TIMED = "import time, {base}; began = time.process_time(); import {module}; print(time.process_time() - began)"


def import_seconds(module: str) -> float:
    """Return the CPU seconds of an import in a fresh interpreter, without those of distributed or Spark."""
    code = TIMED.format(base=BASE.get(module, "distributed"), module=module)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def topology_of(file: Path) -> de.Topology:
    """Return a topology whose sink writes the time of its first row into a file."""

    def note(rows: pa.RecordBatch) -> None:
        if not file.exists():
            file.write_text(str(time.time()))

    topology = de.Topology("start")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64()})))
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    counted.sink(de.sinks.Call(note), name="out")
    return topology


def first_row(client: Client, folder: Path, number: int) -> tuple[float, float, float]:
    """Submit a job; return the seconds until `submit` has returned, until a row has reached the sink, and CPU seconds.

    The CPU time is that of all processes until the row has reached the sink.
    """
    file = folder / str(number)
    processes = [psutil.Process(pid) for pid in (os.getpid(), *client.run(os.getpid).values())]
    topology, rows = topology_of(file), pa.table({"k": [1]})
    cpu = cpu_seconds(processes)
    began = time.time()
    job = de.submit(topology, client)
    submitted = time.time()
    job.send(rows)
    while not file.exists() or not (text := file.read_text()):
        time.sleep(0.001)
    cpu = cpu_seconds(processes) - cpu
    job.forget()
    return submitted - began, float(text) - began, cpu


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that processes have used."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def one_cluster(workers: int, threads: int) -> list[tuple[float, float, float]]:
    """Start a cluster; return what `first_row` returns for its first job and for three more."""
    with (
        TemporaryDirectory() as folder,
        LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return [first_row(client, Path(folder), number) for number in range(4)]


def report(setting: str, taken: Iterable[tuple[float, float, float]]) -> None:
    """Print the medians of one setting."""
    submit, first, cpu = (round(statistics.median(seconds), 4) for seconds in zip(*taken, strict=True))
    line = {"benchmark": "start", "setting": setting, "submit": submit, "first_row": first, "cpu_seconds": cpu}
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="only one cluster, in this process")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(one_cluster(arguments.workers, arguments.threads)))
        return
    with TemporaryDirectory() as compiled:
        compile_modules(compiled)
        measure(arguments)


def compile_modules(folder: str) -> None:
    """Compile what interpreters that are started later import, into a folder."""
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in (de, plugins):
        compileall.compile_dir(Path(package.__file__).parent, quiet=1)
    # The libraries too: one run, whose figures do not count.
    subprocess.run([sys.executable, __file__, "--once"], check=True, capture_output=True)


def measure(arguments: argparse.Namespace) -> None:
    """Measure imports and starts."""
    for module in IMPORTS:
        seconds = statistics.median(import_seconds(module) for _ in range(arguments.runs))
        print(json.dumps({"benchmark": "start", "import": module, "cpu_seconds": round(seconds, 3)}), flush=True)
    # Each cluster in a process of its own, where nothing is imported yet.
    again = [
        sys.executable,
        __file__,
        "--once",
        "--workers",
        str(arguments.workers),
        "--threads",
        str(arguments.threads),
    ]
    runs = [
        json.loads(subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(arguments.runs)
    ]
    report("cold", (run[0] for run in runs))
    report("warm", (one for run in runs for one in run[1:]))


if __name__ == "__main__":
    main()

"""What a start costs: CPU time of the import, and time from `submit` to the first row at a sink.

Prints one JSON line per setting, with medians: the CPU seconds that an import takes in a fresh interpreter beyond
`import distributed`, and the seconds from the call of `submit` until the first row has reached a sink, for the first
job of a new cluster ("cold"), of one whose processes were started with the preload of this package ("preloaded"), and
for later ones ("warm"), with the CPU seconds of all processes. A row is sent as soon as `submit` returns. All
modules are compiled beforehand, as they are where packages are installed, also those of the libraries. The imports of
`pyarrow.compute` and pandas are for comparison: a job's start needs the first, and neither client nor workers need the
second unless the user's code does.

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

import dask
import psutil
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de
import dask_elastic_plugins as plugins

IMPORTS = (
    "dask_elastic",
    "dask_elastic_plugins.worker",
    "dask_elastic.runtime.worker.node",
    "dask_elastic.spark",
    "pyarrow.compute",
    "pandas",
)
PRELOAD = {f"distributed.{process}.preload": ["dask_elastic_plugins.install"] for process in ("scheduler", "worker")}
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


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, which has the scheduler, and of the workers."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def first_row(client: Client, folder: Path, number: int) -> tuple[float, float, float]:
    """Submit a job; return the seconds until `submit` has returned, until a row has reached the sink, and of CPU."""
    file = folder / str(number)
    topology = topology_of(file)
    # Without pa.table, which imports pandas to see whether it is given a column of pandas.
    key = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
    row = pa.RecordBatch.from_arrays([key], ["k"])
    spent, began = cpu_seconds(), time.time()
    job = de.submit(topology, client)
    submitted = time.time()
    job.send(row)
    while not file.exists() or not (text := file.read_text()):
        time.sleep(0.001)
    spent = cpu_seconds() - spent
    job.forget()
    return submitted - began, float(text) - began, spent


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
    medians = (round(statistics.median(seconds), 4) for seconds in zip(*taken, strict=True))
    measures = dict(zip(("submit", "first_row", "cpu_seconds"), medians, strict=True))
    print(json.dumps({"benchmark": "start", "setting": setting, **measures}), flush=True)


def compile_modules(folder: str) -> None:
    """Compile into a folder what interpreters that are started later import."""
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in (de, plugins):
        compileall.compile_dir(Path(package.__file__).parent, quiet=1)
    # The libraries too: runs whose figures do not count.
    for setting in ("cold", "preloaded"):
        subprocess.run([sys.executable, __file__, "--once", setting], check=True, capture_output=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", choices=("cold", "preloaded"), help="only one cluster, in this process")
    arguments = parser.parse_args()
    if arguments.once:
        with dask.config.set(PRELOAD if arguments.once == "preloaded" else {}):
            print(json.dumps(one_cluster(arguments.workers, arguments.threads)))
        return
    with TemporaryDirectory() as compiled:
        compile_modules(compiled)
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Measure imports and starts."""
    for module in IMPORTS:
        seconds = statistics.median(import_seconds(module) for _ in range(arguments.runs))
        print(json.dumps({"benchmark": "start", "import": module, "cpu_seconds": round(seconds, 3)}), flush=True)
    # Each cluster in a process of its own, where nothing is imported yet.
    size = ["--workers", str(arguments.workers), "--threads", str(arguments.threads)]
    runs: dict[str, list[list[tuple[float, float, float]]]] = {"cold": [], "preloaded": []}
    for _ in range(arguments.runs):
        for setting, taken in runs.items():
            again = [sys.executable, __file__, "--once", setting, *size]
            taken.append(json.loads(subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout))
    for setting, taken in runs.items():
        report(setting, (run[0] for run in taken))
    report("warm", (one for taken in runs.values() for run in taken for one in run[1:]))


if __name__ == "__main__":
    main()

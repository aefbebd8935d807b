"""The demonstration: a year of New York's flights, replayed in a minute, while cores and shards move about."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import flights
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from dask.distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic import aggregate as agg

WORKERS = 3
THREADS = 2
SERVICE_SECONDS = 180e-6
HOT_SHARE = 40
"""Of each hundred flights so many are put on the two hot routes of their month."""

OPERATORS = {"per_plane": "tailnum", "per_route": "route"}
SURGE_COLUMNS = ["sched_dep", "flight", "tailnum", "route", "arr_delay"]

STEPS = [
    (0.20, "per_route", 3, "gets a third core; its home is full, so it is a core of another worker"),
    (0.45, "per_route", 2, "gives the remote core back"),
    (0.55, "per_plane", 3, "gets a third, remote core"),
    (0.80, "per_plane", 2, "gives the remote core back"),
]
"""At which part of the replay which operator gets how many cores, and what to say about it."""


def surge(routes: list[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Make the map that puts many flights of each month on two hot routes; a function of the row and nothing else."""
    hot_by_month = pa.array(
        [[routes[(37 * month + 11 * place) % len(routes)] for place in (0, 1)] for month in range(12)]
    )

    def reroute(batch: pa.RecordBatch) -> pa.RecordBatch:
        # Flight numbers are spread evenly enough over the remainders, and every machine computes the same ones.
        flight = pc.cast(batch["flight"], pa.int32())
        remainder = pc.subtract(flight, pc.multiply(pc.divide(flight, 100), 100))
        month = pc.subtract(pc.month(batch["sched_dep"]), 1)
        pairs = hot_by_month.take(month)
        chosen = pc.if_else(pc.less(remainder, HOT_SHARE // 2), pc.list_element(pairs, 0), pc.list_element(pairs, 1))
        route = pc.if_else(pc.less(remainder, HOT_SHARE), chosen, batch["route"])
        return batch.set_column(batch.schema.get_field_index("route"), "route", route)

    return reroute


def emulated(column: str) -> Callable[[pa.RecordBatch], pa.Array]:
    """Make a function that returns a column as if each row took a while, so that the replay is work for the cores."""

    def read(batch: pa.RecordBatch) -> pa.Array:
        time.sleep(batch.num_rows * SERVICE_SECONDS)
        return batch[column]

    return read


def delays() -> dict[str, agg.Aggregate]:
    return {
        "flights": agg.Count(),
        "total": agg.Sum(emulated("arr_delay"), columns=["arr_delay"]),
        "mean": agg.Mean("arr_delay"),
        "worst": agg.Max("arr_delay"),
    }


def build(source: Path, updates: Path, rate: float, routes: list[str]) -> de.Topology:
    topology = de.Topology("flight-delays")
    departures = topology.source("departures", de.sources.Parquet(source, rate=rate, event_time="sched_dep"))
    arrived = departures.filter(pc.field("arr_delay").is_valid(), columns=["arr_delay"], name="arrived")
    busy = arrived.map(surge(routes), columns=SURGE_COLUMNS, name="surge")
    busy.key_by("tailnum").compute(delays(), name="per_plane", executors=1)
    per_route = busy.key_by("route").compute(delays(), name="per_route", executors=1)
    per_route.sink(de.sinks.Parquet(updates, mode="overwrite"), name="route_updates")
    return topology


class LiveLine:
    """One line that is rewritten in a terminal, and printed now and then where there is none."""

    def __init__(self, every: float = 5.0):
        self._rewrites = sys.stdout.isatty()
        self._every = every
        self._last = 0.0
        self._open = False

    def show(self, text: str) -> None:
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", flush=True)
            self._open = True
        elif time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            print(text, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print("\n" * self._open + text, flush=True)
        self._open = False


def status(metrics: pd.DataFrame, rows: int) -> str:
    if metrics["latency_p99"].isna().any() or metrics.empty:
        return "starting"
    p50, p99 = (1000 * metrics[column].astype(float).max() for column in ("latency_p50", "latency_p99"))
    cores = ", ".join(f"{one.operator} {one.cores}" for one in metrics.itertuples())
    moves = f"{metrics['moves'].sum()} moves, {metrics['moves_across'].sum()} across"
    done, rate = metrics["rows"].min() / rows, metrics["arrival_rate"].min()
    return f"{done:4.0%} {rate:5,.0f}/s, p50 {p50:.0f} p99 {p99:.0f} ms, cores {cores}, {moves}"


def watch(job: de.Job, rows: int) -> pd.DataFrame:
    """Follow the job to its end and give and take cores on the way; return the last measures."""
    line = LiveLine()
    steps = iter(STEPS)
    step = next(steps)
    while True:
        metrics = job.metrics()
        line.show(status(metrics, rows))
        ended = job.status in ("finished", "failed", "stopped")
        while not ended and step is not None and len(metrics) and metrics["rows"].min() >= step[0] * rows:
            _, operator, cores, why = step
            job.set_cores(operator, cores)
            line.say(f"  -> {operator} {why}")
            step = next(steps, None)
        if ended:
            line.say("")
            job.wait()
            return job.metrics()
        time.sleep(0.25)


def reference(table: pa.Table, routes: list[str]) -> dict[str, pd.DataFrame]:
    """Compute with pandas what the job computes."""
    arrived = table.filter(pc.is_valid(table["arr_delay"])).select(SURGE_COLUMNS).combine_chunks()
    rows = pa.Table.from_batches([surge(routes)(batch) for batch in arrived.to_batches()])
    frame = rows.select(["tailnum", "route", "arr_delay"]).to_pandas()
    columns = {"flights": "size", "total": "sum", "mean": "mean", "worst": "max"}
    return {
        operator: frame.groupby(key)["arr_delay"].agg(**columns).sort_index() for operator, key in OPERATORS.items()
    }


def compare(operator: str, found: pd.DataFrame, expected: pd.DataFrame) -> Iterator[tuple[str, bool, str]]:
    """Say of each column whether it is what pandas computed: (what, whether, details)."""
    found = found.set_index(OPERATORS[operator]).sort_index()
    same_keys = found.index.equals(expected.index)
    yield f"{operator}: keys", same_keys, f"{len(found):,} of {len(expected):,}"
    for column in ("flights", "total", "worst") if same_keys else ():
        differing = int((found[column].to_numpy() != expected[column].to_numpy()).sum())
        yield f"{operator}: {column}", not differing, f"{differing} differ; sum {found[column].sum():,}"
    if same_keys:
        error = float((found["mean"] - expected["mean"]).abs().max())
        yield f"{operator}: mean", error < 1e-9, f"largest difference {error:.1e}"


def compare_updates(updates: Path, expected: pd.DataFrame) -> tuple[str, bool, str]:
    """Say whether the last update of each route, as the sink wrote it, is the route's final value."""
    written = pq.read_table(updates).to_pandas()
    last = written.sort_values("flights").groupby("route").last().sort_index()
    same = last.index.equals(expected.index) and (last["total"] == expected["total"]).all()
    return "route_updates: last of each route", bool(same), f"{len(written):,} updates"


def verdict(
    job: de.Job, metrics: pd.DataFrame, table: pa.Table, routes: list[str], out: Path
) -> list[tuple[str, bool, str]]:
    """Write the final state, compare everything with pandas, and look whether shards moved."""
    expected = reference(table, routes)
    checks = []
    for operator in OPERATORS:
        state = job.state(operator).to_arrow()
        pq.write_table(state, out / f"{operator}.parquet")
        checks += compare(operator, state.to_pandas(), expected[operator])
    checks.append(compare_updates(out / "route_updates", expected["per_route"]))
    moves, across = int(metrics["moves"].sum()), int(metrics["moves_across"].sum())
    checks.append(("shards moved between cores", moves > 0, f"{moves} moves"))
    checks.append(("shards moved between workers", across > 0, f"{across} moves"))
    return checks


def report(checks: list[tuple[str, bool, str]]) -> None:
    width = max(len(what) for what, _, _ in checks)
    print(f"\n  {'against pandas':{width}}  verdict  details")
    for what, passed, details in checks:
        print(f"  {what:{width}}  {'ok' if passed else 'WRONG':7}  {details}")


@contextmanager
def cluster() -> Iterator[Client]:
    """Some workers on this machine; whatever happens, none of their processes stays behind."""
    # Ctrl-C goes to every process of a terminal. The workers inherit that it is held back, and this process ends them;
    # what comes while they start is delivered when there is something to end. Starting the tracker undoes such a mask.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=THREADS,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as workers,
        Client(workers) as client,
    ):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield client


def replay(table: pa.Table, rate: float, out: Path) -> list[tuple[str, bool, str]]:
    routes = pc.unique(table["route"]).sort().to_pylist()
    rows = table.num_rows - table["arr_delay"].null_count
    print(f"Replaying {table.num_rows:,} flights at {rate:,.0f} per second, {rows:,} of which arrived.")
    print(f"On {WORKERS} workers of {THREADS} threads; each operator begins with 2 cores.")
    print(f"The service time is emulated: each flight costs each operator {SERVICE_SECONDS * 1e6:.0f} µs of sleep,")
    print(f"so two cores are loaded to {rate * SERVICE_SECONDS / 2:.0%}, and to some more by the engine's own work.")
    print(f"Each month, {HOT_SHARE} % of its flights are put on two hot routes, others than the month before.\n")
    with tempfile.TemporaryDirectory(prefix="dask-elastic-demo-") as directory, cluster() as client:
        source = Path(directory, "flights.parquet")
        pq.write_table(table, source)
        began = time.monotonic()
        topology = build(source, out / "route_updates", rate, routes)
        # Larger sub-batches than usual: a remote core pays a round trip for each.
        job = de.submit(topology, client, cores=dict.fromkeys(OPERATORS, 2))
        try:
            metrics = watch(job, rows)
        except KeyboardInterrupt:
            job.stop()
            raise
        print(f"Done in {time.monotonic() - began:.0f} s.")
        return verdict(job, metrics, table, routes, out)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=6000, help="flights per second (default: %(default)s)")
    options.add_argument("--flights", type=int, help="replay only the first so many (default: all)")
    options.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="where results go (default: %(default)s)"
    )
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        checks = replay(flights.load().slice(0, chosen.flights), chosen.rate, chosen.out)
    except KeyboardInterrupt:
        print("\nInterrupted; the workers are gone.")
        return 130
    except de.ElasticError as error:
        print(f"\nThe replay failed: {error}")
        return 1
    report(checks)
    passed = all(passed for _, passed, _ in checks)
    print(f"\n{'All of it is right.' if passed else 'SOMETHING IS WRONG.'} Results are in {chosen.out}/")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

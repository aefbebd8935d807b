"""Flights and delays per airport and hour, every ten minutes, from the flights that left New York City in a month."""

from __future__ import annotations

import sys

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.demo.flights import load


def build(flights: pa.Table) -> de.Topology:
    topology = de.Topology("flights-by-hour")
    source = topology.source("flights", de.sources.Arrow(flights, event_time="sched_dep", batch_rows=2_000))
    hourly = (
        source.key_by("origin")
        .window(de.windows.hopping("1h", "10min"))
        .compute({"flights": agg.Count(), "delay": agg.Mean("dep_delay")}, name="per_airport")
    )
    hourly.sink(de.sinks.Collect(), name="hours")
    return topology


def by_pandas(flights: pa.Table) -> pd.DataFrame:
    """Return the same: each flight is in six hours, those that begin in the 50 minutes before and at its own."""
    frame = flights.to_pandas()
    begins = frame["sched_dep"].dt.floor("10min")
    hours = pd.concat([frame.assign(window_start=begins - pd.Timedelta(minutes=m)) for m in range(0, 60, 10)])
    grouped = hours.groupby(["origin", "window_start"])
    return grouped.agg(flights=("sched_dep", "size"), delay=("dep_delay", "mean"))


def main() -> int:
    flights = load().select(["sched_dep", "origin", "dep_delay"])
    flights = flights.filter(pc.equal(pc.month(flights["sched_dep"]), 7))
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(flights), client)
        job.wait(timeout=60)
        hours = job.collect("hours").to_pandas()
    found = hours.set_index(["origin", "window_start"]).sort_index()
    for airport, each in found.groupby("origin"):
        worst = each[each["flights"] >= 10].sort_values("delay").iloc[-1]
        print(
            f"{airport}: {worst['flights']:.0f} flights until {worst['window_end']} left {worst['delay']:.0f} min late"
        )
    expected = by_pandas(flights)
    pd.testing.assert_frame_equal(
        found[["flights", "delay"]], expected, check_dtype=False, check_index_type=False, rtol=1e-9
    )
    print(f"{len(found):,} results, equal to those of pandas")
    return 0


if __name__ == "__main__":
    sys.exit(main())

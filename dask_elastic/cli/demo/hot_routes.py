"""The shifting load: from February on, most flights of a month are changed to its few hot routes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

MONTHS = 12

HOT_SHARE = 60
"""Percentage of a month's flights that are changed to its hot routes."""

HOT_ROUTES = 4
"""Number of hot routes of a month."""

STEPS = (7, 3)
"""Steps through the routes of an executor, from hot route to hot route and from month to month."""


def hot_routes(routes: Sequence[str], executors: int, shards: int) -> list[list[str]]:
    """Choose the hot routes of each month: none in January, then routes that share one static executor.

    Parameters
    ----------
    routes : sequence of str
        All routes.
    executors : int
        Number of executors among which the static job divides the routes.
    shards : int
        Shards of each executor.

    Returns
    -------
    list of list of str
        The hot routes of the twelve months. Consecutive months have their hot routes on different executors.
    """
    ordered = sorted(routes)
    place = KeySpace(executors, shards).executor_of(hash_columns(pa.record_batch({"route": ordered}), ("route",)))
    chosen: list[list[str]] = [[]]
    for month in range(1, MONTHS):
        own = [route for route, executor in zip(ordered, place, strict=True) if executor == month % executors]
        step, shift = STEPS
        chosen.append([own[(step * number + shift * month) % len(own)] for number in range(HOT_ROUTES)])
    return chosen


def reroute(flights: pa.Table, hot: Sequence[Sequence[str]]) -> pa.Table:
    """Change flights to the hot routes of their month; which ones depends on the flight number only.

    Parameters
    ----------
    flights : Table
        The flights.
    hot : sequence of sequences of str
        The hot routes of each month, as from `hot_routes`.

    Returns
    -------
    Table
        The flights with changed routes.
    """
    by_month = [[*routes, *[None] * (HOT_ROUTES - len(routes))] for routes in hot]
    # The remainders of flight numbers are nearly uniform, and deterministic on every machine.
    flight = flights["flight"].to_numpy().astype("int64") % 100
    month = pc.month(flights["sched_dep"]).to_numpy() - 1
    place = month * HOT_ROUTES + (flight * HOT_ROUTES // HOT_SHARE).clip(max=HOT_ROUTES - 1)
    chosen = pa.array([route for routes in by_month for route in routes], pa.string()).take(pa.array(place))
    is_hot = pc.and_(pa.array(flight < HOT_SHARE), pc.is_valid(chosen))
    route = pc.if_else(is_hot, chosen, flights["route"].combine_chunks())
    return flights.set_column(flights.schema.get_field_index("route"), "route", route)

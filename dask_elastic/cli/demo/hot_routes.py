"""The shifting load: in each month, many flights are changed to two hot routes."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

HOT_SHARE = 40
"""Percentage of flights that are changed to the two hot routes of their month."""

READ_COLUMNS = ["sched_dep", "flight", "tailnum", "route", "arr_delay"]
"""The columns that this map and the operators after it read."""


def reroute(routes: list[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Make the map that changes routes; its result depends on the row only.

    Parameters
    ----------
    routes : list of str
        All routes. Each month uses two of them, which differ from those of the month before.

    Returns
    -------
    callable
        A function from batch to batch.
    """
    # With these steps both hot routes of a month often belong to the same executor, which makes the load shift a lot.
    hot_by_month = pa.array(
        [[routes[(12 * month + 7 * place) % len(routes)] for place in (0, 1)] for month in range(12)]
    )

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        # The remainders of flight numbers are nearly uniform, and deterministic on every machine.
        flight = pc.cast(batch["flight"], pa.int32())
        remainder = pc.subtract(flight, pc.multiply(pc.divide(flight, 100), 100))
        month = pc.subtract(pc.month(batch["sched_dep"]), 1)
        pairs = hot_by_month.take(month)
        chosen = pc.if_else(pc.less(remainder, HOT_SHARE // 2), pc.list_element(pairs, 0), pc.list_element(pairs, 1))
        route = pc.if_else(pc.less(remainder, HOT_SHARE), chosen, batch["route"])
        return batch.set_column(batch.schema.get_field_index("route"), "route", route)

    return change

"""The shifting load: each month, many of its flights are put on two hot routes."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

HOT_SHARE = 40
"""Of each hundred flights so many are put on the two hot routes of their month."""

READ_COLUMNS = ["sched_dep", "flight", "tailnum", "route", "arr_delay"]
"""What is needed of a flight, here and behind."""


def reroute(routes: list[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Make the map that changes routes; a function of the row and nothing else.

    Parameters
    ----------
    routes : list of str
        All routes, of which each month gets two others than the month before.
    """
    # With these steps both hot routes of a month are often work for the same executor, so that the load shifts much.
    hot_by_month = pa.array(
        [[routes[(12 * month + 7 * place) % len(routes)] for place in (0, 1)] for month in range(12)]
    )

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        # Flight numbers are spread evenly enough over the remainders, and every machine computes the same ones.
        flight = pc.cast(batch["flight"], pa.int32())
        remainder = pc.subtract(flight, pc.multiply(pc.divide(flight, 100), 100))
        month = pc.subtract(pc.month(batch["sched_dep"]), 1)
        pairs = hot_by_month.take(month)
        chosen = pc.if_else(pc.less(remainder, HOT_SHARE // 2), pc.list_element(pairs, 0), pc.list_element(pairs, 1))
        route = pc.if_else(pc.less(remainder, HOT_SHARE), chosen, batch["route"])
        return batch.set_column(batch.schema.get_field_index("route"), "route", route)

    return change

"""The flights that the demonstration replays: equally many of each month, evenly spaced."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def sample(flights: pa.Table, months: int, rows: int) -> pa.Table:
    """Choose equally many flights of each of the first months, in order of departure.

    Parameters
    ----------
    flights : Table
        All flights, in order of departure.
    months : int
        The number of months from January on.
    rows : int
        The number of flights of each month; of a month with fewer flights, some are taken repeatedly.

    Returns
    -------
    Table
        ``months * rows`` flights.
    """
    month = pc.month(flights["sched_dep"]).to_numpy()
    chosen = []
    for number in range(1, months + 1):
        places = np.flatnonzero(month == number)
        chosen.append(places[np.linspace(0, len(places) - 1, rows).astype(np.int64)])
    return flights.take(np.concatenate(chosen)).combine_chunks()

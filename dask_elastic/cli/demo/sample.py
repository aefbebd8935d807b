"""The flights that the demonstration replays: some of each month, evenly spaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def sample(flights: pa.Table, rows: Sequence[int]) -> pa.Table:
    """Choose flights of each of the first months, in order of departure.

    Parameters
    ----------
    flights : Table
        All flights, in order of departure.
    rows : sequence of int
        The number of flights of each month from January on; of a month with fewer flights, some are taken repeatedly.

    Returns
    -------
    Table
        As many flights.
    """
    month = pc.month(flights["sched_dep"]).to_numpy()
    chosen = []
    for number, wanted in enumerate(rows, 1):
        places = np.flatnonzero(month == number)
        chosen.append(places[np.linspace(0, len(places) - 1, wanted).astype(np.int64)])
    return flights.take(np.concatenate(chosen)).combine_chunks()

"""Event time of a job as users see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from dask_elastic.runtime.client.data_frame import data_frame
from dask_elastic.runtime.protocol.reports import InstanceTime

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["operator", "instance", "event_time", "late"]


def event_time_table(reported: Iterable[InstanceTime]) -> pd.DataFrame:
    """Return the watermarks that nodes have reported, one row for each instance."""
    rows = list(reported)
    table = data_frame(rows, COLUMNS)
    table["event_time"] = instants(row.event_time for row in rows)
    return table.sort_values(["operator", "instance"], ignore_index=True)


def instants(times: Iterable[int | None]) -> pd.Series:
    """Return microseconds since the epoch as timestamps; None as missing.

    Examples
    --------
    >>> instants([1_000_000, None]).to_list()
    [Timestamp('1970-01-01 00:00:01'), NaT]
    """
    import pandas as pd

    missing = np.iinfo(np.int64).min
    whole = np.array([missing if time is None else time for time in times], dtype=np.int64)
    return pd.Series(whole.view("datetime64[us]"))

"""How far event time has come in a job, as users see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = ["operator", "instance", "event_time", "late"]


def event_time_table(reported: Iterable[list[Any]]) -> pd.DataFrame:
    """Return what nodes reported, one row an instance."""
    rows = list(reported)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["event_time"] = instants(row[2] for row in rows)
    return table.sort_values(["operator", "instance"], ignore_index=True)


def instants(times: Iterable[int | None]) -> pd.Series:
    """Return microseconds since the epoch as instants; None as missing.

    Examples
    --------
    >>> instants([1_000_000, None]).to_list()
    [Timestamp('1970-01-01 00:00:01'), NaT]
    """
    missing = np.iinfo(np.int64).min
    whole = np.array([missing if time is None else time for time in times], dtype=np.int64)
    return pd.Series(whole.view("datetime64[us]"))


def late_rows(described: dict[str, Any]) -> int:
    """Return how many rows of a job's sources were late."""
    return sum(late for *_, late in described["event_times"])

"""What functions of windows get beside rows: the instances that the rows are of."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Instance(NamedTuple):
    """An instance of a window, as functions per key get it.

    Parameters
    ----------
    start, end : datetime
        Its begin, and its end, which is not part of it; in the time zone of the column of event time.
    revision : int or None
        0 when it closes, then 1 more for each correction; None before it closes.

    Examples
    --------
    >>> instance = Instance(datetime.datetime(2013, 7, 1, 6), datetime.datetime(2013, 7, 1, 7), 0)
    >>> instance.end - instance.start
    datetime.timedelta(seconds=3600)
    """

    start: datetime.datetime
    end: datetime.datetime
    revision: int | None


class InstanceState(dict[Any, Any]):
    """What a function per row keeps within one instance of one key: a dict that is empty at the first row.

    Parameters
    ----------
    window : Instance
        The instance.

    Attributes
    ----------
    window : Instance
        The instance.
    is_last : bool
        Whether the row is the last one of the instance.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> @de.per_row
    ... def total(row, state):
    ...     state["sum"] = state.get("sum", 0) + row["delay"]
    ...     return {"sum": state["sum"]} if state.is_last else None
    >>> at = pa.array([0, 60, 7200], pa.timestamp("s"))
    >>> rows = pa.table({"plane": ["a", "a", "a"], "delay": [3, 5, 8], "at": at})
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", de.sources.Arrow(rows, event_time="at"))
    >>> stream.key_by("plane").window("1h").compute(total).sink(de.sinks.Collect(), name="out")
    >>> run(topology).outputs["out"]["sum"].to_pylist()
    [8, 8]
    """

    def __init__(self, window: Instance) -> None:
        super().__init__()
        self.window = window
        self.is_last = False


class Instances:
    """The instances whose rows a function of batches gets, in the order of the rows.

    Parameters
    ----------
    table : RecordBatch
        One row per instance.
    offsets : ndarray of int64
        Where the rows of each instance begin, and at last the number of rows.

    Attributes
    ----------
    table : RecordBatch
        The key, ``window_start``, ``window_end``, and ``revision`` if results may be corrected; one row per instance.
    offsets : ndarray of int64
        Instance `i` has the rows ``offsets[i]`` to ``offsets[i + 1]``; it has at least one.

    Examples
    --------
    >>> found = Instances(pa.record_batch({"plane": ["a", "b"]}), np.array([0, 2, 3]))
    >>> len(found), found.ids.tolist(), found.lengths.tolist()
    (2, [0, 0, 1], [2, 1])

    A function with one result per instance reduces the rows between offsets:

    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> def spread(rows, instances):
    ...     delays, starts = rows["delay"].to_numpy(), instances.offsets[:-1]
    ...     most, least = np.maximum.reduceat(delays, starts), np.minimum.reduceat(delays, starts)
    ...     return instances.table.append_column("spread", pa.array(most - least))
    >>> at = pa.array([0, 60, 7200], pa.timestamp("s"))
    >>> rows = pa.table({"plane": ["a", "a", "a"], "delay": [3, 5, 8], "at": at})
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", de.sources.Arrow(rows, event_time="at"))
    >>> stream.key_by("plane").window("1h").compute(spread).sink(de.sinks.Collect(), name="out")
    >>> run(topology).outputs["out"]["spread"].to_pylist()
    [2, 0]
    """

    def __init__(self, table: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> None:
        self.table = table
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of rows of each instance."""
        found: npt.NDArray[np.int64] = np.diff(self.offsets)
        return found

    @property
    def ids(self) -> npt.NDArray[np.intp]:
        """The instance of each row, by its position in `table`."""
        found: npt.NDArray[np.intp] = np.repeat(np.arange(len(self)), self.lengths)
        return found

    def __repr__(self) -> str:
        return f"Instances({len(self)} with {self.offsets[-1]} rows)"

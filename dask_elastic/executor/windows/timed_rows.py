"""The rows of a batch that have a time, with their times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.windows.cells import Assigned
from dask_elastic.executor.windows.event_times import Times, microseconds, rows_numbered, window_times
from dask_elastic.state.index import Words
from dask_elastic.state.slot_search import Mask
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.chosen_rows import ChosenRows, copied, taken


class TimedRows(NamedTuple):
    """Rows with a time, the hashes of their keys, the times of each column, and the rows without one, if any."""

    rows: pa.RecordBatch | ChosenRows
    hashes: Words
    times: list[Times]
    untimed: pa.RecordBatch | None

    @classmethod
    def of(cls, rows: pa.RecordBatch | ChosenRows, hashes: Words, windowing: Windowing) -> TimedRows:
        """Divide the rows of a batch.

        Parameters
        ----------
        rows : RecordBatch or ChosenRows
            The rows; chosen rows stay so while each has a time.
        hashes : ndarray of uint64
            The hashes of their keys.
        windowing : Windowing
            Names the columns of times.

        Returns
        -------
        TimedRows
            The rows.

        Raises
        ------
        ValueError
            If a row has no time, and such rows are refused; or if its time is too far from 1970.
        """
        columns = [rows.column(name) for name in windowing.time]
        untimed = valid = None
        if any(column.null_count for column in columns):
            valid = np.logical_and.reduce([numpy_of(column.is_valid()) for column in columns])
            if windowing.null_time == "refuse":
                valid_choices = "'drop'" if windowing.counted else "'drop' or null_time='late'"
                error = ValueError(
                    f"the time {' or '.join(map(repr, windowing.time))} is null; filter such rows, or choose "
                    f"null_time={valid_choices}"
                )
                error.row = int(valid.argmin())  # type: ignore[attr-defined]
                raise error
            rows = copied(rows)
            untimed = rows.filter(array_of(~valid))
            rows, hashes = rows.filter(array_of(valid)), hashes[valid]
            columns = [rows.column(name) for name in windowing.time]
        # Times do not decide which rows are in a count window.
        read = microseconds if windowing.counted else window_times
        named = zip(columns, windowing.time, strict=True)
        with rows_numbered(valid):
            times = [read(column, name) for column, name in named]
        return cls(rows, hashes, times, untimed)


def part_of_rows(
    rows: pa.RecordBatch | ChosenRows, hashes: Words, assigned: Assigned, chosen: Mask
) -> tuple[pa.RecordBatch | ChosenRows, Words, Assigned]:
    """Return some of the rows."""
    positions = np.flatnonzero(chosen)
    cells = None if assigned.cells is None else assigned.cells.take(positions)
    return taken(rows, positions), hashes.take(positions), assigned._replace(rows=None, cells=cells)

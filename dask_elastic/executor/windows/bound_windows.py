"""What the logic of windows derives from the schema of its input, and the rows of results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.event_times import Times, timestamps
from dask_elastic.state.slots import Column
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.windowing import REVISION, WINDOW_START


class BoundWindows(NamedTuple):
    """What depends on the schema of the input.

    Parameters
    ----------
    schema : Schema
        The schema of the input.
    bundle : Bundle
        The aggregates, bound to it.
    keys : list of int
        The positions of the key columns.
    results : Schema
        The schema of results.
    time : DataType
        The type of the begin and the end of an instance.
    own : int
        The position of the first field of the state that is no aggregate's.
    """

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema
    time: pa.DataType
    own: int

    def batch(
        self,
        keys: list[pa.Array],
        starts: Times,
        ends: Times,
        values: list[Column],
        revision: npt.NDArray[np.int64] | int,
    ) -> pa.RecordBatch:
        """Return results as rows; a revision below 0, before an instance has closed, is null."""
        # Results of windows over all rows have no key.
        shown = [] if self.results.names[0] == WINDOW_START else keys
        columns = [*shown, timestamps(starts, self.time), timestamps(ends, self.time)]
        if REVISION in self.results.names:
            numbers = np.broadcast_to(np.asarray(revision, np.int64), len(starts))
            columns.append(pa.array(numbers, mask=numbers < 0))
        columns += self.bundle.results(values).values()
        return pa.RecordBatch.from_arrays(columns, schema=self.results)

"""The rows that came too late for windows, as a stream of their own."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.topology.operators import MapOperator
from dask_elastic.topology.windows.one_key import ONE_KEY


class LateRows(MapOperator):
    """An operator whose input are the rows that came too late for the windows of a compute; it returns them.

    Parameters
    ----------
    name : str
        The operator's name in the topology.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"a": [1]})
    >>> [late.to_pydict() for late in LateRows("late").apply(rows)]
    [{'a': [1]}]
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, _unchanged)


def _unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    # Windows over all rows add a constant key.
    return rows.drop_columns([ONE_KEY]) if ONE_KEY in rows.schema.names else rows

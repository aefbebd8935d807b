"""A sink that puts its rows on a Dask queue, for a program or another job to read."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.topology.sink import Outbox, Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError


class DaskQueue(Sink):
    """Hands results to whoever reads a queue, in the order of each writer.

    The rows stay on the worker that made them until they were read; descriptors alone go through the scheduler, and a
    Dask `Queue` of the same name wakes who waits. Read it with `dask_elastic.read_queue`.

    Parameters
    ----------
    name : str
        Name of the queue. One job writes to it.
    limit : int, default 64
        How many batches may wait. When it is as many, the sink waits, and the job with it.

    Raises
    ------
    TopologyError
        When the name is none, or the limit is below 1.

    Examples
    --------
    >>> DaskQueue("alerts", limit=8)
    DaskQueue('alerts', limit=8)
    """

    def __init__(self, name: str, *, limit: int = 64):
        if not isinstance(name, str) or not name:
            raise TopologyError(f"sinks.DaskQueue: name is {name!r}; give the name of a queue.")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise TopologyError(f"sinks.DaskQueue: limit is {limit!r}; give how many batches may wait, 1 or more.")
        self.name = name
        self.limit = limit

    def __repr__(self) -> str:
        """Return the sink as it could be written."""
        return f"DaskQueue({self.name!r}, limit={self.limit})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer that offers what it is given; see `Sink.open`."""
        if context.outbox is None:
            raise SinkError(f"{self!r} needs a cluster: it has nobody to hand its rows to here.")
        context.outbox.open(self.name, self.limit)
        return _Offerer(self.name, self.limit, context.outbox)


class _Offerer(SinkWriter):
    def __init__(self, name: str, limit: int, outbox: Outbox):
        self._name = name
        self._limit = limit
        self._outbox = outbox

    def write(self, rows: pa.RecordBatch) -> None:
        self._outbox.put(self._name, self._limit, rows)

    def close(self) -> None:
        return None

    def abort(self) -> None:
        return None

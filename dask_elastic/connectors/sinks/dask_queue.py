"""A sink that publishes its rows on a Dask queue, for a program or another job to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from dask_elastic.topology.sink import Outbox, Sink, SinkContext, SinkWriter
from dask_elastic.vocab.errors import SinkError, TopologyError

TakenBy = Literal["reader", "get"]


class DaskQueue(Sink):
    """Publish results on a queue; the batches of each writer are read in the order in which it wrote them.

    The rows stay on the worker that produced them until they are read. Read them with `dask_elastic.read_queue` or
    `sources.DaskQueue`; only descriptors go through the scheduler then.

    A Dask `Queue` of the same name has a copy of each batch that waits, for any Dask client: ``Queue(name).get()``
    returns a batch of up to 64 KiB as the bytes of an Arrow IPC stream, which ``pyarrow.ipc.open_stream`` reads, and a
    larger one as a handle with the methods ``fetch(timeout)`` and ``afetch(timeout)``. A client that gets a copy takes
    nothing away from the reader. For programs that have no other reader, set ``taken_by="get"``.

    It promises each row at least once: a checkpoint is complete only when the readers have taken all batches before
    it, and a restart repeats the batches after it. In a job with checkpoints, the metadata of each batch's schema has
    its numbers, as decimal text: `instance` of the sink, `batch` within the instance and generation, `generation` of
    the job, and `checkpoint` before the batch. Once a batch of a generation arrives with checkpoint n, the batches of
    earlier generations with n or more are obsolete: a reader that keeps these numbers with the rows can drop them.

    Parameters
    ----------
    name : str
        Name of the queue. Only one job may write to it.
    limit : int, default 64
        Number of batches that may wait to be read. A full queue blocks the sink, and so slows the job down.
    taken_by : {"reader", "get"}, default "reader"
        When a batch counts as taken: when the reader has acknowledged it, or as soon as any Dask client has got it from
        the Dask queue. With "get", all batches go through the scheduler as Arrow IPC, several clients can share the
        work, and a client that ends while it gets a batch loses it.

    Raises
    ------
    TopologyError
        When the name is empty or not a string, the limit is below 1, or `taken_by` is something else.

    Examples
    --------
    >>> DaskQueue("alerts", limit=8)
    DaskQueue('alerts', limit=8)
    """

    promise = "at-least-once"

    def __init__(self, name: str, *, limit: int = 64, taken_by: TakenBy = "reader"):
        if not isinstance(name, str) or not name:
            raise TopologyError(f"sinks.DaskQueue: name is {name!r}; give the name of a queue.")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise TopologyError(f"sinks.DaskQueue: limit is {limit!r}; give a number of batches, 1 or more.")
        if taken_by not in ("reader", "get"):
            raise TopologyError(f'sinks.DaskQueue: taken_by is {taken_by!r}; give "reader" or "get".')
        self.name = name
        self.limit = limit
        self.taken_by = taken_by

    def __repr__(self) -> str:
        """Return the call that creates the sink, as text."""
        taken_by = "" if self.taken_by == "reader" else f", taken_by={self.taken_by!r}"
        return f"DaskQueue({self.name!r}, limit={self.limit}{taken_by})"

    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer that publishes its rows on the queue.

        Parameters
        ----------
        context : SinkContext
            Holds the outbox of the worker, and the numbers of instance and generation.

        Returns
        -------
        SinkWriter
            The writer. Its `write` blocks while the queue is full.

        Raises
        ------
        SinkError
            Outside a cluster, where there is no outbox.
        """
        if context.outbox is None:
            raise SinkError(f"{self!r} can only be opened by a job on a cluster; elsewhere there are no queues.")
        context.outbox.open(self.name, self.limit, self.taken_by == "get")
        return _Publisher(self.name, self.limit, context.outbox, context)


class _Publisher(SinkWriter):
    def __init__(self, name: str, limit: int, outbox: Outbox, context: SinkContext):
        self._name = name
        self._limit = limit
        self._outbox = outbox
        self._context = context
        self._batch = 0
        self._checkpoint = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if self._context.checkpoints:
            rows = rows.replace_schema_metadata(self._numbers())
            self._batch += 1
        self._outbox.put(self._name, self._limit, rows)

    def close(self) -> None:
        return None

    def abort(self) -> None:
        return None

    def prepare(self, checkpoint: int) -> object | None:
        self._outbox.drain(self._name)
        self._checkpoint = checkpoint
        return None

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        self._checkpoint = checkpoint

    def _numbers(self) -> dict[str, str]:
        context = self._context
        numbers = {
            "instance": context.instance,
            "batch": self._batch,
            "generation": context.generation,
            "checkpoint": self._checkpoint,
        }
        return {name: str(number) for name, number in numbers.items()}

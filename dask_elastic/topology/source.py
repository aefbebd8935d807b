"""The interface of sources, which users implement and the engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

Replay = Literal["at-most-once"]
"""What a user accepts of a source that cannot rewind."""

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]
"""What a source does to each batch."""


def never_stopping() -> bool:
    """Return False; the default of `SourceContext.stopping`."""
    return False


@dataclass(frozen=True)
class SourceContext:
    """What the engine passes to one instance of a source.

    Parameters
    ----------
    instance : int
        The number of the instance, from 0.
    instances : int
        The number of instances that share the source's rows.
    offset : object or None
        Where to resume: an offset that the source yielded, or None to start at the beginning.
    mailbox : iterator of RecordBatch or None
        The batches that `job.send` delivers, for a source with `pushed = True`.
    stopping : callable
        Returns True once the job asks the source to end early. Call it between batches.
    queue : callable or None
        `queue(name)` iterates over the batches of a queue that a `sinks.DaskQueue` writes. None without a cluster.
    client : callable or None
        `client()` connects a new `distributed.Client` to the job's cluster, which the source closes. None without a
        cluster.
    position : callable or None
        For a source with `spooled = True`, in a job with checkpoints: `position()` is the offset behind the batch of
        `mailbox` or `queue` that was read last. None elsewhere.
    epochs : callable or None
        For a source with `epochs`: `epochs(offset)` iterates over the batches of committed epochs behind an offset,
        each with the offset after it. None without a cluster.
    agreed : callable or None
        ``agreed(found)`` returns the bytes that the first instance has passed to it in this start of the job, for
        instances that divide what each of them finds, such as files. None for a single instance, or without a cluster.

    Examples
    --------
    >>> context = SourceContext(instance=1, instances=4)
    >>> list(range(10))[context.instance :: context.instances]
    [1, 5, 9]
    """

    instance: int = 0
    instances: int = 1
    offset: object | None = None
    mailbox: Iterator[pa.RecordBatch] | None = None
    stopping: Callable[[], bool] = never_stopping
    queue: Callable[[str], Iterator[pa.RecordBatch]] | None = None
    client: Callable[[], Any] | None = None
    position: Callable[[], object] | None = None
    epochs: Callable[[object | None], Iterator[tuple[pa.RecordBatch, object]]] | None = None
    agreed: Callable[[bytes], bytes] | None = None


class Source(ABC):
    """A source of record batches; subclass it to read from your own system.

    A source is a value: the client creates it, it is pickled, and workers read it. It opens nothing before `read`.
    `dask_elastic.testing.check_source` checks that it resumes from each of its offsets.

    Attributes
    ----------
    parallel : int
        The number of instances that read it in parallel.
    rate : float or None
        The most rows per second over all instances; None for as fast as possible.
    event_time : str or None
        The column with the event time of each row.
    slack : float
        A row is late if its event time is more than this many seconds before the newest one so far.
    blocks : bool
        Whether `read` may wait for something, such as a file, a server or user code; each instance then has a thread
        that reads, beside the one that sends. False if all rows are in memory.
    pushed : bool
        True if `job.send` delivers the rows, instead of the source reading them.
    sent_schema : Schema or None
        For such a source: the schema to which `job.send` casts rows; with None, it sends them as they are.
    epochs : int
        For a pushed source that receives whole epochs from another engine: the most epochs that wait; 0 otherwise.
    staging_bytes : int
        For such a source: the most bytes of rows that an instance holds in memory until they are read.
    on_reset : str
        For such a source: "accept" if a query may skip epochs or repeat its input, "fail" if not.
    replayable : bool
        Whether reading from an earlier offset yields the rows after it again. Jobs with checkpoints refuse a source
        that cannot.
    spooled : bool
        Whether jobs with checkpoints write the rows of `mailbox` or `queue` to the folder of the checkpoints before
        they acknowledge them, so that the source can rewind; it then yields `SourceContext.position()` as offset.
    replay : str or None
        For a source that is not replayable: "at-most-once" if jobs with checkpoints may read it all the same. Rows that
        it yielded after the newest checkpoint are then lost in a restart.

    Examples
    --------
    >>> class Numbers(Source):
    ...     def read(self, context):
    ...         start = context.offset or 0
    ...         for number in range(start, 3):
    ...             yield pa.RecordBatch.from_pydict({"number": [number]}), number + 1
    >>> [offset for rows, offset in Numbers().read(SourceContext(offset=1))]
    [2, 3]

    What a source need not define:

    >>> source = Numbers()
    >>> source.check()
    >>> source.columns_read(("number",)) is source
    True
    >>> source.accept(pa.RecordBatch.from_pydict({"number": [7]})).num_rows
    1
    >>> source.known_schema() is None, source.converts() is None
    (True, True)
    """

    parallel: int = 1
    rate: float | None = None
    event_time: str | None = None
    slack: float = 0.0
    blocks: bool = True
    pushed: bool = False
    sent_schema: pa.Schema | None = None
    epochs: int = 0
    staging_bytes: int = 0
    on_reset: str = "fail"
    replayable: bool = True
    spooled: bool = False
    replay: Replay | None = None

    def columns_read(self, columns: tuple[str, ...] | None) -> Source:
        """Return this source, pruned to the columns that the topology reads.

        Parameters
        ----------
        columns : tuple of str or None
            The columns that downstream operators read, and `event_time`; None for all.

        Returns
        -------
        Source
            A pruned copy, or the source itself if it cannot prune.
        """
        return self

    def check(self) -> None:
        """Raise errors that the client can detect; called when the job is submitted.

        Raises
        ------
        SourceError
            When the source cannot be read. The default raises nothing.
        """
        return None

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows that are pushed to the source to its schema; senders may call it to check rows in advance.

        Parameters
        ----------
        rows : RecordBatch
            The rows; may be empty.

        Returns
        -------
        RecordBatch
            The rows as the job reads them. The default returns them unchanged.

        Raises
        ------
        SchemaMismatch
            When they do not fit the schema.
        """
        return rows

    def converts(self) -> Convert | None:
        """Return what `read` does to each batch of `mailbox`, for a pushed source that does nothing else.

        Few rows are then sent on by the thread that has received them, without `read`, if nothing else waits. A
        subclass that overrides `read` alone is always read.

        Returns
        -------
        callable or None
            Takes a batch, and returns the batch to send, which may be empty. The default is None: all rows are read.
        """
        return None

    def known_schema(self) -> pa.Schema | None:
        """Return the schema of the rows that it yields, if that is known; called after `check` on the client.

        Returns
        -------
        Schema or None
            The schema, with which operators are checked when the job is submitted. The default knows none.
        """
        return None

    @abstractmethod
    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read this instance's share of the rows.

        Parameters
        ----------
        context : SourceContext
            The instance, and the offset at which to start.

        Yields
        ------
        tuple of RecordBatch and object
            Rows, and the offset after them: reading from that offset yields exactly the rows that follow, in the same
            order. Offsets are small picklable values. The engine may resume in the midst of a batch: it reads from the
            offset before, and drops as many rows as were processed. A source that could then continue with other rows,
            such as those of another partition, first yields an empty batch whose offset determines the next rows.
        """

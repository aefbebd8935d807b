"""Where rows come from: the contract between a source and the engine that reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa


def never_stopping() -> bool:
    """Say that nobody asks the source to stop; what a `SourceContext` uses unless told otherwise."""
    return False


@dataclass(frozen=True)
class SourceContext:
    """What the engine tells one instance of a source.

    Parameters
    ----------
    instance : int
        Which instance this is, counted from 0.
    instances : int
        How many instances share the source's rows.
    offset : object or None
        Where to go on: an offset that the source itself yielded, or None to begin.
    mailbox : iterator of RecordBatch or None
        The batches that `job.send` delivers, for a source with `pushed = True`.
    stopping : callable
        True once the job wants the source to end early. Ask between batches.
    queue : callable or None
        Reads a queue that a `sinks.DaskQueue` writes: `queue(name)` iterates over its batches. None without a cluster.
    """

    instance: int = 0
    instances: int = 1
    offset: object | None = None
    mailbox: Iterator[pa.RecordBatch] | None = None
    stopping: Callable[[], bool] = never_stopping
    queue: Callable[[str], Iterator[pa.RecordBatch]] | None = None


class Source(ABC):
    """A replayable source of record batches; subclass it to read from a system of your own.

    A source is a value: it is described on the client, pickled, and read on workers. It opens nothing before `read`.

    Attributes
    ----------
    parallel : int
        How many instances read it at the same time.
    rate : float or None
        At most so many rows per second over all instances; None is as fast as possible.
    event_time : str or None
        The column that says when each row happened.
    slack : float
        How many seconds older than the newest row so far a row may be that is not late.
    pushed : bool
        True when the rows come from `job.send` rather than from a place that the source reads.
    epochs : int
        For a pushed source to which another engine hands whole epochs over: how many may wait; 0 for all others.
    staging_bytes : int
        For such a source: how many bytes of its rows an instance keeps in memory until they are read.

    Examples
    --------
    >>> class Numbers(Source):
    ...     def read(self, context):
    ...         start = context.offset or 0
    ...         for number in range(start, 3):
    ...             yield pa.RecordBatch.from_pydict({"number": [number]}), number + 1
    >>> [offset for rows, offset in Numbers().read(SourceContext(offset=1))]
    [2, 3]
    """

    parallel: int = 1
    rate: float | None = None
    event_time: str | None = None
    slack: float = 0.0
    pushed: bool = False
    epochs: int = 0
    staging_bytes: int = 0

    def columns_read(self, columns: tuple[str, ...] | None) -> Source:
        """Return this source pruned to the columns that the topology reads.

        Parameters
        ----------
        columns : tuple of str or None
            The columns that are read behind this source, with its `event_time`; None means all.

        Returns
        -------
        Source
            A pruned copy, or the source itself when it cannot prune.
        """
        return self

    def check(self) -> None:
        """Raise what the client can already know to be wrong; called when the job is submitted.

        Raises
        ------
        SourceError
            When the source cannot be read. The default finds nothing wrong.
        """
        return None

    def accept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows that somebody hands over into the source's schema; whoever hands over can ask before.

        Parameters
        ----------
        rows : RecordBatch
            The rows, perhaps none.

        Returns
        -------
        RecordBatch
            The rows as they are read. The default takes them as they are.

        Raises
        ------
        SchemaMismatch
            When they do not fit.
        """
        return rows

    @abstractmethod
    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Read this instance's share of the rows.

        Parameters
        ----------
        context : SourceContext
            Which share, and where to begin.

        Yields
        ------
        tuple of RecordBatch and object
            Rows, and the offset behind them: reading from that offset yields exactly the rows that follow. Offsets
            are small values that can be pickled.
        """

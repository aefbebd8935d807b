"""The interface of sinks, which users implement and the engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dask_elastic.vocab.errors import SinkError


class Outbox(Protocol):
    """Holds the rows of queues until their readers take them."""

    def open(self, queue: str, limit: int) -> None:
        """Announce this writer to the readers of the queue."""

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        """Offer rows to the readers of the queue; blocks while `limit` batches wait in it."""


@dataclass(frozen=True)
class SinkContext:
    """The job, node and instance of a sink writer.

    Parameters
    ----------
    job : str
        The name of the job.
    operator : str
        The name of the sink in the topology.
    node : int
        The node on which the writer runs.
    instance : int
        The number of the writer among all writers of the sink, from 0.
    outbox : Outbox or None
        Holds rows for the readers of queues; None without a cluster.
    run : str
        Random identifier of this run of the job, the same for all of its writers. A sink that writes files puts it into
        their names: a writer of an earlier run may still have files open. Empty without a cluster.

    Examples
    --------
    >>> context = SinkContext("delays", "out", node=2, instance=3)
    >>> f"part-{context.operator}-{context.instance}.parquet"
    'part-out-3.parquet'
    """

    job: str
    operator: str
    node: int = 0
    instance: int = 0
    outbox: Outbox | None = None
    run: str = ""


class SinkWriter(ABC):
    """Writes the batches of one instance of a sink; called by one thread at a time.

    Examples
    --------
    >>> class RowCounter(SinkWriter):
    ...     rows = 0
    ...
    ...     def write(self, rows):
    ...         self.rows += rows.num_rows
    ...
    ...     def close(self):
    ...         print(self.rows, "rows")
    ...
    ...     def abort(self):
    ...         self.rows = 0
    >>> writer = RowCounter()
    >>> writer.write(pa.RecordBatch.from_pydict({"n": [1, 2]}))
    >>> writer.close()
    2 rows
    >>> writer.collected()
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SinkError: RowCounter keeps ...
    """

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write one batch.

        Parameters
        ----------
        rows : RecordBatch
            The rows, in order.
        """

    @abstractmethod
    def close(self) -> None:
        """Make all written rows durable and visible; called at the end of the input."""

    @abstractmethod
    def abort(self) -> None:
        """Discard unfinished output; called if the job fails or is stopped."""

    def collected(self) -> list[pa.RecordBatch]:
        """Return the batches that this writer keeps for the client.

        Returns
        -------
        list of RecordBatch
            The batches, in the order in which they were written.

        Raises
        ------
        SinkError
            When this kind of sink keeps no batches, which is the default.
        """
        name = type(self).__name__
        raise SinkError(f"{name} keeps no rows to collect; use sinks.Collect to read results back.")


class Sink(ABC):
    """Where a job writes results; subclass it and `SinkWriter` to write to your own system.

    A sink is a value: the client creates it, it is pickled, and workers open it.

    Examples
    --------
    >>> class Printer(SinkWriter):
    ...     def write(self, rows):
    ...         print(rows.num_rows, "rows")
    ...
    ...     def close(self):
    ...         print("done")
    ...
    ...     def abort(self):
    ...         pass
    >>> class Print(Sink):
    ...     def open(self, context):
    ...         return Printer()
    >>> writer = Print().open(SinkContext("job", "print"))
    >>> writer.write(pa.RecordBatch.from_pydict({"n": [1, 2]}))
    2 rows
    >>> writer.close()
    done
    """

    @abstractmethod
    def open(self, context: SinkContext) -> SinkWriter:
        """Open a writer; called on the worker that will use it.

        Parameters
        ----------
        context : SinkContext
            Job, operator, node and instance of the writer.

        Returns
        -------
        SinkWriter
            A writer for this instance only.
        """

"""Where rows go: the contract between a sink and the engine that writes to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dask_elastic.vocab.errors import SinkError


class OutputBuffer(Protocol):
    """Holds rows for those who read a queue."""

    def open(self, queue: str, limit: int) -> None:
        """Say that rows will be put, so that who reads the queue knows of whom to expect them."""

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        """Hold rows and offer them; blocks while `limit` batches wait in the queue."""


@dataclass(frozen=True)
class SinkContext:
    """Where one writer of a sink stands.

    Parameters
    ----------
    job : str
        The name of the job.
    operator : str
        The name of the sink in the topology.
    node : int
        The node on which the writer runs.
    instance : int
        Which of the sink's writers this is, counted from 0 over all nodes.
    outbox : OutputBuffer or None
        Where to leave rows for those who read a queue; None where there is no cluster.
    """

    job: str
    operator: str
    node: int = 0
    instance: int = 0
    outbox: OutputBuffer | None = None


class SinkWriter(ABC):
    """Writes the batches of one instance of a sink; one thread at a time calls it."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Take one batch.

        Parameters
        ----------
        rows : RecordBatch
            The rows, in order.
        """

    @abstractmethod
    def close(self) -> None:
        """Make what was written durable and visible: all input has been seen."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what is unfinished: the job failed or was stopped."""

    def collected(self) -> list[pa.RecordBatch]:
        """Return the batches that this writer keeps for the client.

        Returns
        -------
        list of RecordBatch
            In the order in which they were written.

        Raises
        ------
        SinkError
            When this kind of sink keeps nothing, which is the default.
        """
        name = type(self).__name__
        raise SinkError(f"{name} keeps nothing that could be collected; use sinks.Collect to read results back.")


class Sink(ABC):
    """A place for results; subclass it, with a `SinkWriter`, to write to a system of your own.

    A sink is a value: it is described on the client, pickled, and opened on workers.

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
        """Open a writer on the worker that will use it.

        Parameters
        ----------
        context : SinkContext
            Job, operator, node and instance of the writer.

        Returns
        -------
        SinkWriter
            A writer that no other instance shares.
        """

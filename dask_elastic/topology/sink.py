"""The interface of sinks, which users implement and the engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from dask_elastic.vocab.errors import SinkError

Promise = Literal["exactly-once", "at-least-once", "at-most-once"]
"""How often a sink shows a row if the job is restarted from a checkpoint."""


class Outbox(Protocol):
    """Holds the rows of queues until their readers take them."""

    def open(self, queue: str, limit: int, by_get: bool = False) -> None:
        """Announce this writer to the readers of the queue; `by_get` if any client takes what it gets from it."""

    def put(self, queue: str, limit: int, rows: pa.RecordBatch) -> None:
        """Offer rows to the readers of the queue; blocks while `limit` batches wait in it."""

    def drain(self, queue: str) -> None:
        """Wait until the readers of the queue have taken all rows that were put."""


class Staging(Protocol):
    """Keeps rows in the folder of the job's checkpoints, for sinks that show them when they are committed."""

    def write(self, name: str, batches: Sequence[pa.RecordBatch]) -> Any:
        """Write rows durably under a new name, and return a small reference for the handle of the transaction."""

    def read(self, file: Any) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a reference; None if they were deleted."""

    def delete(self, file: Any) -> None:
        """Delete the rows of a reference, after they were committed."""

    def sweep(self, prefix: str, below: int) -> None:
        """Delete rows of earlier generations: names begin with `prefix`, then with a generation before `below`."""

    def sweep_unprepared(self, sink: str, below: int, checkpoint: int) -> None:
        """Delete rows of generations before `below`: names are sink, -, instance, -g, generation, -c and a checkpoint.

        Only from `checkpoint` on: rows with a lower number may be prepared and not committed yet.
        """

    def newest_generation(self) -> int:
        """Return the newest generation of the job: writers of earlier ones have been replaced."""


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
        Random identifier of this run of the job, the same for all of its writers; a restart from a checkpoint keeps
        it. A sink that writes files puts it into their names: a writer of an earlier run may still have files open.
        Empty without a cluster.
    checkpoints : bool
        Whether the job takes checkpoints: what is written becomes visible with `SinkWriter.commit` only.
    generation : int
        A number that grows with each restart of the job. Writers of an earlier generation may hang and continue: what
        they leave must be told apart from what this one writes.
    restored : bool
        Whether the job was restarted from a checkpoint, or after a writer of the sink had opened: `SinkWriter.recover`
        is called before the first row.
    staging : Staging or None
        Keeps rows until they are committed, for sinks that have no place of their own; None without checkpoints.

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
    checkpoints: bool = False
    generation: int = 0
    restored: bool = False
    staging: Staging | None = None


class SinkWriter(ABC):
    """Writes the batches of one instance of a sink; called by one thread at a time.

    In a job with checkpoints, rows become visible in two phases: `prepare` makes a *transaction* of all rows since
    the last `prepare`, and `commit` makes it visible once the checkpoint is complete. A job without checkpoints calls
    neither, nor `recover`; there `close` makes everything visible.

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

    A writer that commits in two phases:

    >>> class Printer(RowCounter):
    ...     def prepare(self, checkpoint):
    ...         prepared, self.rows = f"{self.rows} rows, checkpoint {checkpoint}", 0
    ...         return prepared
    ...
    ...     def commit(self, prepared):
    ...         print(prepared)
    >>> writer = Printer()
    >>> writer.write(pa.RecordBatch.from_pydict({"n": [1, 2]}))
    >>> prepared = writer.prepare(7)
    >>> writer.commit(prepared)
    2 rows, checkpoint 7

    If the job is restarted before the commit, the writer of the new generation commits:

    >>> Printer().recover([prepared], checkpoint=7)
    2 rows, checkpoint 7
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
        """Make all rows that were not prepared durable and visible; called at the end of the input.

        A job with checkpoints prepares and commits the last rows before it calls this.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard what was not prepared; called if the job fails, is stopped or restarts."""

    def prepare(self, checkpoint: int) -> object | None:
        """Make all rows written since the last `prepare` durable, but not visible.

        Rows that are written later belong to the next transaction. Only a writer that can tell what it wrote before
        from what it writes later can prepare; one that writes at once flushes, and returns None.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint; numbers increase, also across restarts.

        Returns
        -------
        object or None
            A handle with which a writer on another node can commit: small and picklable. None if there is nothing to
            commit. If the checkpoint is given up, the handle is committed with the next one that completes.

        Raises
        ------
        SinkError
            When this kind of sink cannot prepare, which is the default.
        """
        name = type(self).__name__
        raise SinkError(f"{name} cannot take part in checkpoints: it does not define prepare.")

    def commit(self, prepared: object) -> None:
        """Make a transaction visible; committing it again changes nothing.

        Parameters
        ----------
        prepared : object
            What `prepare` returned, of this writer or of a lost one.
        """
        return None

    def recover(self, prepared: Sequence[object], checkpoint: int) -> None:
        """Commit what a checkpoint holds, and remove what later, incomplete ones left.

        Called once after `open` in a job that was restarted, unless no writer of the sink had opened before. The
        default only commits.

        Parameters
        ----------
        prepared : sequence of object
            The handles that the checkpoint holds for this instance and for instances of lost nodes that were assigned
            to it, in the order in which they were prepared. They may have been committed before.
        checkpoint : int
            The number of the newest complete checkpoint; 0 if there is none.
        """
        for handle in prepared:
            self.commit(handle)

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

    Attributes
    ----------
    promise : str or None
        How often it shows a row if a job is restarted from a checkpoint. "exactly-once": its writers show rows when
        they are committed. "at-least-once": its writers show rows when they are written, and `prepare` flushes them;
        rows after the checkpoint are shown again. "at-most-once": rows may be lost in a restart, which the user
        allowed. None: jobs with checkpoints refuse it. `dask_elastic.testing.check_sink` checks the promise.

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

    promise: Promise | None = None

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

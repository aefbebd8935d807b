"""The format "dask_elastic" of Spark: what a query writes is staged at a job's source, and committed by epochs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from dask_elastic.runtime.protocol.handoff_calls import AbortEpoch, CommitEpoch, HandoffPlaces
from dask_elastic.spark.staging_connection import ask, end_source, stage
from dask_elastic.spark.target import FORMAT, Target
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import HandoffError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COMMIT_SECONDS = 2.0
"""How long one question waits for room in the job's queue; it is asked until there is."""

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """What a task of Spark says of its partition.

    Parameters
    ----------
    query : str
        Who wrote.
    epoch : int
        Which micro-batch.
    generation : int
        The generation of the job for which the rows are staged.
    source : str
        Which source of it.
    part : StagedPart
        The attempt.
    """

    query: str
    epoch: int
    generation: int
    source: str
    part: StagedPart


class DaskElasticSource(DataSource):
    """The data source that `register` makes known to Spark.

    Parameters
    ----------
    options : mapping of str to str
        See `Target.from_options`.
    """

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self.target = Target.from_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return what Spark calls the format."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch.

        Raises
        ------
        HandoffError
            If the mode is not "append".
        """
        _refuse_overwriting(overwrite)
        return BatchWriter(self.target)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return what writes the micro-batches of a query; Spark calls it on the driver, and for each commit again.

        Raises
        ------
        HandoffError
            If the output mode is "complete".
        """
        _refuse_overwriting(overwrite)
        return StreamWriter(self.target)


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch as one epoch.

    Parameters
    ----------
    target : Target
        Where to. Without the option `query` each batch is a query of its own.
    """

    def __init__(self, target: Target):
        self.target = target
        self.query = target.query or f"batch-{uuid.uuid4()}"
        self.epoch = target.epoch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; called in Spark's Python workers."""
        return _staged(self.target, self.query, self.epoch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch; waits while the job's queue is full. The last batch ends the source."""
        _commit(self.target, messages)
        if self.target.end:
            end_source(self.target)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        _abort(self.target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each as an epoch.

    Parameters
    ----------
    target : Target
        Where to.
    """

    def __init__(self, target: Target):
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; called in Spark's Python workers."""
        context = _context()
        query = self.target.query or context.getLocalProperty(QUERY_ID)
        epoch = context.getLocalProperty(BATCH_ID)
        if query is None or epoch is None:
            raise HandoffError(
                "Spark does not say which micro-batch of which query this is: use handoff in foreachBatch."
            )
        return _staged(self.target, query, int(epoch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a micro-batch; waits while the job's queue is full, and Spark's source with it."""
        _commit(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what was staged."""
        _abort(self.target, messages)


def _staged(target: Target, query: str, epoch: int, batches: Iterator[pa.RecordBatch]) -> Staged:
    context = _context()
    places = ask(target, HandoffPlaces(target.job, target.source))
    # Spark numbers attempts anew when it is started anew: the rest tells them apart.
    attempt = AttemptId(query, epoch, context.partitionId(), f"{context.taskAttemptId()}-{uuid.uuid4().hex[:12]}")
    part = stage(target, attempt, places, batches)
    return Staged(query, epoch, places.generation, places.source, part)


def _commit(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    staged = _of_one_epoch(messages)
    if not staged:
        return
    first = staged[0]
    parts = tuple(message.part for message in staged if message.part.rows)
    commit = CommitEpoch(target.job, first.generation, first.source, first.query, first.epoch, parts, COMMIT_SECONDS)
    while not ask(target, commit):
        pass  # each call waits for room; a job that has ended raises


def _abort(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Drop what finished tasks staged; that of the others went with their connections."""
    for message in _of_one_epoch(messages)[:1]:
        ask(target, AbortEpoch(target.job, message.generation, message.source, message.query, message.epoch))


def _of_one_epoch(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    epochs = {(message.query, message.epoch, message.generation, message.source) for message in staged}
    if len(epochs) > 1:
        raise HandoffError(f"one micro-batch was written as several, {sorted(epochs)}: the job was started anew.")
    return staged


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise HandoffError("rows are written in tasks of Spark only.")
    return context


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise HandoffError(
            f'format {FORMAT!r} adds rows to a stream and overwrites nothing: use .mode("append"), and for a streaming '
            'query .outputMode("append").'
        )

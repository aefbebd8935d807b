"""Spark's format "dask_elastic": rows are written to a job's source by epochs, and state is read from checkpoints."""

from __future__ import annotations

import logging
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
from dask_elastic.spark.staged_partition import stage
from dask_elastic.spark.staging_connection import call_scheduler, end_source
from dask_elastic.spark.target import FORMAT, Target, checkpoint_key
from dask_elastic.vocab.epoch import NAMED, AttemptId, EpochKind, EpochOrigin, StagedPart
from dask_elastic.vocab.errors import ElasticError, HandoffError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dask_elastic.spark.state_reader import StateReader

logger = logging.getLogger("dask_elastic.spark")

COMMIT_SECONDS = 2.0
"""Seconds that one commit call waits for room in the job's queue; the commit is retried until there is room."""

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """The commit message of a Spark task for its partition.

    Parameters
    ----------
    query : str
        The query that wrote the rows.
    epoch : int
        The number of the micro-batch.
    generation : int
        The generation of the job at which the rows are staged.
    run : str
        The run of the job, if the rows outlive the generation; else empty.
    source : str
        The source of the job.
    origin : EpochOrigin
        Who numbers the epochs.
    part : StagedPart
        The staged attempt.
    """

    query: str
    epoch: int
    generation: int
    run: str
    source: str
    origin: EpochOrigin
    part: StagedPart


class DaskElasticSource(DataSource):
    """The data source that `register` registers with Spark.

    Parameters
    ----------
    options : mapping of str to str
        See `Target.from_options` for writing, and `StateTarget.from_options` for reading.
    """

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._reader: StateReader | None = None

    @property
    def target(self) -> Target:
        """The job and source to which is written."""
        return Target.from_options(dict(self.options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the state that is read; Spark calls it on the driver."""
        return self._state_reader().schema()

    def reader(self, schema: StructType) -> StateReader:
        """Return the reader of an operator's state; Spark calls it on the driver."""
        return self._state_reader()

    def _state_reader(self) -> StateReader:
        # Imported when state is read: it would delay the start of each Python worker that writes.
        from dask_elastic.spark.state_reader import StateReader, StateTarget

        if self._reader is None:
            self._reader = StateReader(StateTarget.from_options(dict(self.options)))
        return self._reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch; Spark calls it on the driver.

        Raises
        ------
        HandoffError
            If the mode is not "append", or a column contains variants.
        """
        _refuse_overwriting(overwrite)
        _refuse_variants(schema)
        return BatchWriter(self.target)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer of a query's micro-batches; Spark calls it on the driver, and again for each commit.

        Raises
        ------
        HandoffError
            If the output mode is "complete", or a column contains variants.
        """
        _refuse_overwriting(overwrite)
        _refuse_variants(schema)
        return StreamWriter(self.target)


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch as one epoch.

    Parameters
    ----------
    target : Target
        The job and source. Without the option `query`, each batch is a separate query.
    """

    def __init__(self, target: Target):
        self.target = target
        self.query = target.query or f"batch-{uuid.uuid4()}"
        self.epoch = target.epoch or 0
        self.origin = _origin_of_batch(target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; called in Spark's Python workers."""
        return _staged(self.target, self.query, self.epoch, self.origin, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch, waiting while the job's queue is full; end the source if the option `end` is set."""
        _commit(self.target, messages)
        if self.target.end:
            end_source(self.target)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows."""
        _abort(self.target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each as an epoch.

    Parameters
    ----------
    target : Target
        The job and source.
    """

    def __init__(self, target: Target):
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; called in Spark's Python workers.

        Raises
        ------
        HandoffError
            If Spark did not set the query and micro-batch of the task, or the job accepts no more rows.
        """
        context = _context()
        query = self.target.query or context.getLocalProperty(QUERY_ID)
        epoch = context.getLocalProperty(BATCH_ID)
        if query is None or epoch is None:
            raise HandoffError(
                "Spark did not set the query and micro-batch of this task: use handoff in foreachBatch instead."
            )
        origin = EpochOrigin(EpochKind.STREAM, checkpoint_key(self.target.checkpoint or "", self.target.query))
        return _staged(self.target, query, int(epoch), origin, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a micro-batch, waiting while the job's queue is full, which blocks Spark's source."""
        _commit(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop the staged rows."""
        _abort(self.target, messages)


def _staged(target: Target, query: str, epoch: int, origin: EpochOrigin, batches: Iterator[pa.RecordBatch]) -> Staged:
    context = _context()
    try:
        places = call_scheduler(target, HandoffPlaces(target.job, target.source, query, epoch))
        # Spark restarts the numbers of attempts with the application: the random part keeps them unique.
        attempt = AttemptId(query, epoch, context.partitionId(), f"{context.taskAttemptId()}-{uuid.uuid4().hex[:12]}")
        part = stage(target, attempt, places, batches)
    except ElasticError as error:
        # Spark prints the traceback to the user, to whom the frames of this package mean nothing.
        raise error.with_traceback(None) from None
    run = places.run if places.spooled else ""
    return Staged(query, epoch, places.generation, run, places.source, origin, part)


def _origin_of_batch(target: Target) -> EpochOrigin:
    if target.query is None:
        return EpochOrigin(EpochKind.BATCH)
    return NAMED if target.checkpoint is None else EpochOrigin(EpochKind.FOREACH_BATCH, target.checkpoint)


def _commit(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    staged = _of_one_epoch(messages)
    if not staged:
        return
    first = staged[0]
    parts = tuple(message.part for message in staged if message.part.rows)
    commit = CommitEpoch(
        target.job, first.generation, first.run, first.source, first.query, first.epoch, first.origin, parts,
        COMMIT_SECONDS,
    )  # fmt: skip
    while not call_scheduler(target, commit):
        pass  # each call waits for room; it raises if the job has ended


def _abort(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Drop the rows that finished tasks staged; rows of other tasks were dropped when their connections closed.

    Raises nothing: a job that has ended has dropped the rows, and Spark would report the failure to abort instead of
    its reason.
    """
    try:
        for message in _of_one_epoch(messages)[:1]:
            named = message.generation, message.run, message.source, message.query, message.epoch
            call_scheduler(target, AbortEpoch(target.job, *named))
    except (ElasticError, OSError) as error:
        logger.info("job %r: an epoch could not be aborted: %s", target.job, error)


def _of_one_epoch(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    epochs = {(message.query, message.epoch, message.run or message.generation, message.source) for message in staged}
    if len(epochs) > 1:
        raise HandoffError(
            f"the tasks of one micro-batch wrote to different generations of the job, {[*epochs]}: the job was "
            "submitted again meanwhile. Start the query again."
        )
    return staged


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise HandoffError("rows can only be written within a Spark task.")
    return context


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise HandoffError(
            f'format {FORMAT!r} only appends rows: use .mode("append"), or .outputMode("append") for a stream.'
        )


def _refuse_variants(schema: StructType) -> None:
    # Spark's driver calls this, and the package takes a while to import in each Python worker.
    from dask_elastic.topology.variant_columns import variant_columns

    variants = variant_columns(schema)
    if variants:
        raise HandoffError(
            f"columns {', '.join(variants)} contain variants, which format {FORMAT!r} does not write: convert them "
            "with to_json or variant_get."
        )

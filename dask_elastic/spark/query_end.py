"""A listener in Spark's driver that ends a job's source when the streaming query that writes to it ends."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from dask_elastic.spark.failure import innermost
from dask_elastic.spark.staging_connection import end_source
from dask_elastic.spark.target import FORMAT, Target
from dask_elastic.vocab.errors import ElasticError

logger = logging.getLogger("dask_elastic.spark")

WRITES = "WriteToMicroBatchDataSource"
"""The class name of the plan of a query that writes to a data source, not to a function."""

TEMPORARY = "temporary-"
"""What the names of checkpoints begin with that Spark creates for queries without one."""

_FOLLOWED: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_FOREACH_BATCH: dict[str, set[Target]] = {}


class QueryEndListener(StreamingQueryListener):
    """Ends the sources that a query wrote to when the query ends, unless it failed or has the option `end` "false".

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session of the queries.
    """

    def __init__(self, spark: SparkSession):
        self._spark = spark
        # By run, the id of the query, which a restart keeps, and Spark's object.
        self.running: dict[str, tuple[str, Any]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Keep a reference to the query: Spark drops its own before it calls `onQueryTerminated`."""
        query = self._spark.streams.get(str(event.id))
        if query is not None:
            self.running[str(event.runId)] = str(event.id), query._jsq

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """End the sources that the query wrote to, unless it failed: a failed query may be restarted."""
        name = str(event.id)
        _, query = self.running.pop(str(event.runId), (name, None))
        if any(other == name for other, _ in self.running.values()):
            # The event of a run that has failed may come when the next run of the query has sent rows.
            return
        targets = _FOREACH_BATCH.pop(name, set())
        if event.exception is None or _stopped(event):
            for target in targets | _written(name, query):
                _end(name, target)


def follow_queries(spark: SparkSession) -> None:
    """Add a listener to a session that ends sources when the queries that write to them end.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that starts the queries. Further calls for the same session have no effect.
    """
    if spark not in _FOLLOWED:
        _FOLLOWED.add(spark)
        spark.streams.addListener(QueryEndListener(spark))


def follow_foreach_batch(spark: SparkSession, query: str, target: Target) -> None:
    """Register the target of a query's `foreachBatch` function, so that its source ends with the query.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that started the query.
    query : str
        Spark's id of the query.
    target : Target
        The job and source to which the function sends rows.
    """
    _FOREACH_BATCH.setdefault(query, set()).add(target)
    follow_queries(spark)


def _stopped(event: Any) -> bool:
    """Return whether an error is the end of a Spark job that was cancelled because its query was stopped.

    `query.stop()` cancels the jobs of the query before it interrupts its thread. If the function of `foreachBatch` runs
    one at that moment, it may see either first; Spark takes a cancelled job in such a function for an error.
    """
    return f"cancelled part of cancelled job group {event.runId}" in event.exception


def checkpoint_of(query: str) -> str:
    """Return the location of the checkpoint of a running query; empty if Spark deletes it with the query.

    Parameters
    ----------
    query : str
        Spark's id of the query. It stands for its checkpoint where the query is not found.

    Returns
    -------
    str
        The URI.
    """
    try:
        found = SparkSession.builder.getOrCreate().streams.get(query)
        location = query if found is None else str(found._jsq.streamingQuery().resolvedCheckpointRoot())
    except Py4JError as error:
        logger.debug("the checkpoint of query %s is unknown: %s", query, innermost(str(error)))
        return query
    return "" if location.rpartition("/")[2].startswith(TEMPORARY) else location


def _end(query: str, target: Target) -> None:
    """End a source; if that fails, log how to end it, because Spark hides a listener's error."""
    try:
        end_source(target)
    except (ElasticError, OSError) as error:
        logger.warning(
            "query %s has ended, but the source that it wrote to could not be ended (%s): call "
            "job.end_of_input(), otherwise job %r waits for more input.",
            query, error, target.job,
        )  # fmt: skip


def _written(query: str, running: Any) -> set[Target]:
    """Return the target of a query in the format "dask_elastic" whose source must end; else an empty set."""
    try:
        options = None if running is None else _options(running)
    except Py4JError as error:
        # The query was stopped before Spark had planned it.
        logger.warning(
            "query %s ended before Spark had planned it, so its target is unknown and no source is ended: %s",
            query, innermost(str(error)),
        )  # fmt: skip
        return set()
    if options is None:
        return set()
    target = Target.from_options(options)
    return set() if target.end is False else {target}


def _options(running: Any) -> dict[str, str] | None:
    """Return the writer options of a JVM query in the format "dask_elastic"; None for another format."""
    plan = running.streamingQuery().logicalPlan()
    if plan.getClass().getSimpleName() != WRITES or plan.table().name() != FORMAT:
        return None
    found, entries = {}, plan.writeOptions().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = str(entry._2())
    return found

"""When a streaming query that writes to a job has ended, so has the job's source: what listens in Spark's driver."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming.listener import StreamingQueryListener

from dask_elastic.spark.failure import innermost
from dask_elastic.spark.staging_connection import end_source
from dask_elastic.spark.target import FORMAT, Target
from dask_elastic.vocab.errors import ElasticError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("dask_elastic.spark")

WRITES = "WriteToMicroBatchDataSource"
"""What Spark calls the plan of a query that writes with a data source, and not with a function."""

_FOLLOWED: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_BY_HAND: dict[str, set[Target]] = {}


class QueryEnds(StreamingQueryListener):
    """Ends the sources that a query wrote to when the query ends, unless it failed or has the option `end` "false".

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session whose queries are followed.
    """

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self.running: dict[str, Any] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Keep hold of the query: Spark lets go of it before it says that it has ended."""
        query = self._spark.streams.get(str(event.id))
        if query is not None:
            self.running[str(event.runId)] = query._jsq

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """End the sources that the query wrote to; a query that failed will be started again."""
        targets = _BY_HAND.pop(str(event.id), set())
        query = self.running.get(str(event.runId))
        try:
            if event.exception is None:
                for target in targets | _written(str(event.id), query):
                    _end(str(event.id), target)
        finally:
            self.running.pop(str(event.runId), None)


def follow_queries(spark: SparkSession) -> None:
    """Let the end of a session's queries end the sources that they write to.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that starts the queries. It is followed once, however often this is called.
    """
    if spark not in _FOLLOWED:
        _FOLLOWED.add(spark)
        spark.streams.addListener(QueryEnds(spark))


def follow_by_hand(spark: SparkSession, query: str, target: Target) -> None:
    """Remember that a function of `foreachBatch` hands over to a source, which ends with its query.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that has started the query.
    query : str
        Spark's id of the query.
    target : Target
        Where the rows go.
    """
    _BY_HAND.setdefault(query, set()).add(target)
    follow_queries(spark)


def _end(query: str, target: Target) -> None:
    """End a source, or say who has to: an error of a listener would be lost in Spark's log."""
    try:
        end_source(target)
    except (ElasticError, OSError) as error:
        logger.warning(
            "query %s has ended, but the source that it wrote to could not be ended (%s): end it with "
            "job.end_of_input(), or job %r waits for ever.",
            query, error, target.job,
        )  # fmt: skip


def _written(query: str, running: Any) -> set[Target]:
    """Return where a query wrote to with our format and ends what it wrote to; nothing for other queries."""
    try:
        options = None if running is None else _options(running)
    except Py4JError as error:
        # It was stopped before Spark had made its plan.
        logger.warning("query %s has ended before it was clear where it writes to: %s", query, innermost(str(error)))
        return set()
    if options is None:
        return set()
    target = Target.from_options(options)
    return set() if target.end is False else {target}


def _options(running: Any) -> dict[str, str] | None:
    """Return the options with which a query of the JVM writes with our format, None if it has another."""
    plan = running.streamingQuery().logicalPlan()
    if plan.getClass().getSimpleName() != WRITES or plan.table().name() != FORMAT:
        return None
    found, entries = {}, plan.writeOptions().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = str(entry._2())
    return found

"""What a user calls to hand Spark's rows over to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark.dask_access import VARIABLES, access
from dask_elastic.spark.data_source import QUERY_ID, DaskElasticSource
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.query_end import follow_by_hand, follow_queries
from dask_elastic.spark.staging_connection import ask, end_source
from dask_elastic.spark.target import FORMAT, TLS_OPTIONS, Target
from dask_elastic.vocab.errors import HandoffError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def register(spark: SparkSession) -> None:
    """Make the format "dask_elastic" known to a session of Spark.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session. Its Python workers must be able to import dask_elastic.

    Notes
    -----
    From now on the end of a streaming query of this session, be it stopped or done, is the end of the source that it
    writes to, unless the query failed or has the option `end` "false".

    Spark looks formats up in the session that is active in the calling thread; here this one becomes active. Another
    thread that writes must register, too.
    """
    follow_queries(spark)
    _register_format(spark)


def _register_format(spark: SparkSession) -> None:
    spark.dataSource.register(DaskElasticSource)
    # Of PySpark's public calls, only this one makes a session active.
    spark.createDataFrame([], "nothing int")


def into(job: Any, source: str | None = None) -> dict[str, str]:
    """Return the options with which Spark writes to a job.

    Parameters
    ----------
    job : dask_elastic.Job
        A running job.
    source : str, optional
        Its `sources.Spark`; may be left out where it has just one.

    Returns
    -------
    dict of str to str
        For `.options(**...)` of a writer: cluster, job, source, and the paths of TLS credentials.

    Raises
    ------
    SparkFailed
        If the cluster lives in this process alone, where Spark cannot reach it.
    """
    found = access(job.client)
    tls = {field: found[VARIABLES[field]] for field in TLS_OPTIONS if VARIABLES[field] in found}
    target = Target(found["DASK_SCHEDULER_ADDRESS"], str(job.name), tls=tuple(tls.items()))
    generation = ask(target, Describe(target.job)).generation
    options = {"address": target.address, "job": target.job, "run": str(generation)}
    return {**options, **({} if source is None else {"source": source}), **tls}


def handoff(
    frame: DataFrame,
    epoch: int,
    job: Any,
    *,
    source: str | None = None,
    query: str | None = None,
    end: bool | None = None,
) -> None:
    """Hand a frame over as one epoch; what a function for `foreachBatch` calls.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows.
    epoch : int
        Which micro-batch, as `foreachBatch` says.
    job : dask_elastic.Job
        A running job.
    source : str, optional
        Its `sources.Spark`; may be left out where it has just one.
    query : str, optional
        Who writes. Within `foreachBatch` it is the streaming query; elsewhere give a name, under which an epoch that
        comes again is known.
    end : bool, optional
        True if nothing comes after this epoch, so that the job can finish. Within `foreachBatch` the source ends when
        the streaming query does; False keeps it open, for other queries or for this one when it is started again.

    Raises
    ------
    HandoffError
        If nobody knows who writes.
    SparkFailed
        If the rows could not be made or handed over; says why.
    """
    spark = frame.sparkSession
    streaming = spark.sparkContext.getLocalProperty(QUERY_ID)
    if query is None and streaming is None:
        raise HandoffError("handoff: outside of foreachBatch give query=, a name under which epochs are remembered.")
    _register_format(spark)
    options = {**into(job, source), "query": query or streaming, "epoch": str(epoch), "end": str(bool(end)).lower()}
    if streaming is not None and end is None:
        # The frames of foreachBatch belong to a copy of the session that started the query.
        follow_by_hand(SparkSession.builder.getOrCreate(), streaming, Target.from_options(into(job, source)))
    with spark_errors(f"handing epoch {epoch} over to job {job.name!r}"):
        frame.write.format(FORMAT).options(**options).mode("append").save()


def drain(query: StreamingQuery, job: Any, source: str | None = None, timeout: int | None = None) -> None:
    """Wait until a query has ended, then let the job process what it got and finish.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        A query that writes to the job; one with the trigger `availableNow` ends by itself, others when stopped. The
        source ends also where the query has the option `end` "false".
    job : dask_elastic.Job
        The job.
    source : str, optional
        The source that the query writes to; may be left out where there is just one.
    timeout : int, optional
        Seconds to wait for the query, and for the job afterwards.

    Raises
    ------
    SparkFailed
        If the query failed. The job goes on: the query may be started again with its checkpoint.
    TimeoutError
        If one of them takes longer.
    """
    with spark_errors(f"query {query.name or query.id}"):
        ended = query.awaitTermination() if timeout is None else query.awaitTermination(timeout)
    if ended is False:
        raise TimeoutError(f"query {query.name or query.id} still runs after {timeout} s")
    end_source(Target.from_options(into(job, source)))
    job.wait(timeout, progress=False)

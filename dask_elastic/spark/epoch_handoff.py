"""The user's functions for sending Spark's rows to a job by the epoch protocol."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark.dask_access import VARIABLES, access
from dask_elastic.spark.data_source import QUERY_ID, DaskElasticSource
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.micro_batch_sends import Destination, MicroBatch, MicroBatchSends
from dask_elastic.spark.query_end import checkpoint_of, follow_foreach_batch, follow_queries
from dask_elastic.spark.staging_connection import call_scheduler, end_source
from dask_elastic.spark.target import FORMAT, TLS_OPTIONS, Target, checkpoint_key
from dask_elastic.vocab.errors import HandoffError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

JOB_GROUP = "spark.jobGroup.id"
"""The property of a query's thread with Spark's id of the run."""

_SENDS = MicroBatchSends()


def register(spark: SparkSession) -> None:
    """Register the format "dask_elastic" with a Spark session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session. Its Python workers must be able to import dask_elastic.

    Notes
    -----
    When a streaming query of this session is stopped or finishes, the source that it writes to ends, too, unless the
    query failed or has the option `end` "false".

    Spark looks up formats in the session that is active in the calling thread; `register` makes this session active.
    Other threads that write must also call `register`.

    Examples
    --------
    Write a stream to a running job::

        register(spark)
        writer = frame.writeStream.format("dask_elastic").options(**into(job))
        query = writer.option("checkpointLocation", "/data/checkpoint").start()
    """
    follow_queries(spark)
    _register_format(spark)


def _register_format(spark: SparkSession) -> None:
    spark.dataSource.register(DaskElasticSource)
    # Of PySpark's public calls, only this one makes a session active.
    spark.createDataFrame([], "nothing int")


def into(job: Any, source: str | None = None) -> dict[str, str]:
    """Return the options of a Spark writer that writes to a job.

    Parameters
    ----------
    job : dask_elastic.Job
        A running job.
    source : str, optional
        The name of its `sources.Spark`; may be omitted if the job has only one.

    Returns
    -------
    dict of str to str
        For `.options(**...)` of a writer: address of the scheduler, job, run, source, paths of TLS credentials.

    Raises
    ------
    SparkFailed
        If the cluster runs inside this process, where Spark cannot reach it.
    HandoffError
        If the scheduler cannot be reached.
    UnknownJob
        If the job has been forgotten.

    Examples
    --------
    Write a batch as the last epoch of a job::

        register(spark)
        frame.write.format("dask_elastic").options(**into(job), end="true").mode("append").save()
    """
    found = access(job.client)
    tls = {field: found[VARIABLES[field]] for field in TLS_OPTIONS if VARIABLES[field] in found}
    target = Target(found["DASK_SCHEDULER_ADDRESS"], str(job.name), tls=tuple(tls.items()))
    described = call_scheduler(target, Describe(target.job))
    if source is None and len(described.handoffs) == 1:
        source = described.handoffs[0].source
    options = {"address": target.address, "job": target.job, "run": described.run}
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
    """Send the rows of a frame to a job as one epoch; call it in the function for `foreachBatch`.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows.
    epoch : int
        The number of the micro-batch, which `foreachBatch` passes to its function.
    job : dask_elastic.Job
        A running job.
    source : str, optional
        The name of its `sources.Spark`; may be omitted if the job has only one.
    query : str, optional
        The name of the writing query, by which repeated epochs are recognised. By default the id of the streaming
        query within `foreachBatch`; required elsewhere, and for a second handoff of one micro-batch to one source.
    end : bool, optional
        True if this epoch is the last one, so that the job can finish. By default, within `foreachBatch`, the source
        ends when the streaming query ends. False keeps it open for other queries, or for a restart of this one.

    Raises
    ------
    HandoffError
        If `query` is missing outside of `foreachBatch`, or if its function hands over one micro-batch twice to one
        source under one name.
    SparkFailed
        If Spark could not compute or send the rows; names the cause.

    Examples
    --------
    Send each micro-batch of a stream, and count it::

        def send(batch, epoch):
            handoff(batch, epoch, job)
            print(epoch, batch.count())

        query = stream.writeStream.foreachBatch(send).option("checkpointLocation", "/data/checkpoint").start()
    """
    spark = frame.sparkSession
    streaming = spark.sparkContext.getLocalProperty(QUERY_ID)
    name = query or streaming
    if not name:
        raise HandoffError("handoff outside of foreachBatch needs query=, a name to recognise repeated epochs.")
    _register_format(spark)
    target = into(job, source)
    options = {**target, "query": name, "epoch": str(epoch), "end": str(bool(end)).lower()}
    with ExitStack() as around:
        if streaming is not None:
            options["checkpoint"] = checkpoint_key(checkpoint_of(streaming), query)
            batch = MicroBatch(streaming, spark.sparkContext.getLocalProperty(JOB_GROUP), epoch)
            place = Destination(target["job"], target["run"], target.get("source", ""), name)
            around.enter_context(_SENDS.once(batch, place))
        if streaming is not None and end is None:
            # The frames of foreachBatch belong to a clone of the session that started the query.
            follow_foreach_batch(SparkSession.builder.getOrCreate(), streaming, Target.from_options(target))
        around.enter_context(spark_errors(f"handoff of epoch {epoch} to job {job.name!r}"))
        frame.write.format(FORMAT).options(**options).mode("append").save()


def drain(query: StreamingQuery, job: Any, source: str | None = None, timeout: int | None = None) -> None:
    """Wait until a query has ended, end the source that it writes to, and wait until the job has finished.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        A query that writes to the job. With the trigger `availableNow` it ends by itself; otherwise stop it. The source
        is ended even if the query has the option `end` "false".
    job : dask_elastic.Job
        The job.
    source : str, optional
        The source that the query writes to; may be omitted if the job has only one.
    timeout : int, optional
        Seconds to wait for the query, and then for the job.

    Raises
    ------
    SparkFailed
        If the query failed. The job keeps running, so that the query can be restarted from its checkpoint.
    TimeoutError
        If the query or the job does not end in time.

    Examples
    --------
    Process all files that are there, then finish the job::

        query = writer.trigger(availableNow=True).start()
        drain(query, job, timeout=600)
    """
    with spark_errors(f"query {query.name or query.id}"):
        ended = query.awaitTermination() if timeout is None else query.awaitTermination(timeout)
    if ended is False:
        raise TimeoutError(f"query {query.name or query.id} is still running after {timeout} s: stop it first")
    end_source(Target.from_options(into(job, source)))
    job.wait(timeout, progress=False)

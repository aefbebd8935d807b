"""The end of a stopped query is recognised, and told from a failure; without a JVM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from dask_elastic.spark import SparkFailed, query_end
from dask_elastic.spark.failure import spark_errors
from dask_elastic.spark.query_end import QueryEndListener
from dask_elastic.spark.target import Target

TARGET = Target("tcp://scheduler", "job")


@pytest.mark.parametrize(
    "name",
    [
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException: sleep interrupted",
        "java.nio.channels.ClosedByInterruptException",
    ],
)
def test_interruption_by_a_stop_keeps_the_text_by_which_spark_recognises_it(name):
    with pytest.raises(Py4JError, match=name), spark_errors("handoff"):
        raise Py4JError(f"An error occurred while calling o7.save.\n: {name}\n\tat a.b(c.java:1)")
    with pytest.raises(SparkFailed), spark_errors("handoff"):
        raise Py4JError("An error occurred while calling o7.save.\n: java.io.IOException: disk full")


@pytest.mark.parametrize(
    ("exception", "ended"),
    [
        (None, True),
        ("handoff of epoch 1: [SPARK_JOB_CANCELLED] Job 4 cancelled part of cancelled job group run SQLSTATE", True),
        ("handoff of epoch 1: [SPARK_JOB_CANCELLED] Job 4 cancelled part of cancelled job group other", False),
        ("an attempt fails", False),
    ],
)
def test_query_whose_job_was_cancelled_by_its_stop_ends_its_source(monkeypatch, exception, ended):
    found = []
    monkeypatch.setattr(query_end, "end_source", found.append)
    monkeypatch.setitem(query_end._FOREACH_BATCH, "id", {TARGET})
    QueryEndListener(None).onQueryTerminated(SimpleNamespace(id="id", runId="run", exception=exception))
    assert found == ([TARGET] if ended else [])


def test_late_end_of_an_earlier_run_leaves_the_source_to_the_run_that_follows(monkeypatch):
    found = []
    monkeypatch.setattr(query_end, "end_source", found.append)
    monkeypatch.setitem(query_end._FOREACH_BATCH, "id", {TARGET})
    session = SimpleNamespace(streams=SimpleNamespace(get=lambda query: SimpleNamespace(_jsq=None)))
    listener = QueryEndListener(session)
    for query, run in (("id", "first"), ("other", "its"), ("id", "second")):
        listener.onQueryStarted(SimpleNamespace(id=query, runId=run))
    listener.onQueryTerminated(SimpleNamespace(id="id", runId="first", exception="an attempt fails"))
    assert query_end._FOREACH_BATCH["id"] == {TARGET}
    listener.onQueryTerminated(SimpleNamespace(id="id", runId="second", exception=None))
    assert found == [TARGET]
    assert {*listener.running} == {"its"}

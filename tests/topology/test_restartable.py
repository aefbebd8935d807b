from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.connectors.sinks.collect import Collect
from dask_elastic.topology import Sink, SinkContext, SinkWriter, Source, Topology
from dask_elastic.topology.restartable import check_restartable
from dask_elastic.vocab.errors import SinkError, SubmitError


class Feed(Source):
    def __init__(self, replayable, replay=None):
        self.replayable = replayable
        self.replay = replay

    def read(self, context):
        yield pa.RecordBatch.from_pydict({"n": [1]}), 1


class Ledger(SinkWriter):
    def __init__(self):
        self.committed = []

    def write(self, rows):
        pass

    def close(self):
        pass

    def abort(self):
        pass

    def commit(self, prepared):
        self.committed.append(prepared)


class Books(Sink):
    def __init__(self, promise):
        self.promise = promise

    def open(self, context):
        return Ledger()


def operators(source, sink):
    topology = Topology("audit")
    topology.source("feed", source).sink(sink, name="books")
    return topology.operators


@pytest.mark.parametrize("promise", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("source", [Feed(True), Feed(False, "at-most-once")])
def test_job_with_checkpoints_accepts_source_that_rewinds_and_sink_that_promises(source, promise):
    check_restartable("audit", operators(source, Books(promise)))


def test_source_that_cannot_rewind_is_named():
    with pytest.raises(
        SubmitError, match=r"job 'audit' takes checkpoints, but source 'feed', .*replay=\"at-most-once\""
    ):
        check_restartable("audit", operators(Feed(False), Books("exactly-once")))


def test_sink_that_promises_nothing_is_named():
    with pytest.raises(SubmitError, match=r"sink 'books', .* cannot take part in them\. Define SinkWriter\.prepare"):
        check_restartable("audit", operators(Feed(True), Books(None)))
    with pytest.raises(SubmitError, match=r"sink 'books', Collect\(.* set promise=\"at-most-once\" to accept"):
        check_restartable("audit", operators(Feed(True), Collect()))


def test_writer_without_prepare_names_its_class_when_a_checkpoint_reaches_it():
    with pytest.raises(SinkError, match="Ledger cannot take part in checkpoints: it does not define prepare"):
        Books("exactly-once").open(SinkContext("audit", "books")).prepare(1)


def test_recovering_writer_commits_each_handle_in_order_by_default():
    writer = Ledger()
    writer.recover(["a", "b"], checkpoint=4)
    assert writer.committed == ["a", "b"]

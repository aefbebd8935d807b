from __future__ import annotations

import pytest

from dask_elastic.testing import check_sink
from dask_elastic.topology import Sink, SinkWriter


class Store:
    """What is durable: prepared and visible batches by transaction."""

    def __init__(self):
        self.prepared = {}
        self.visible = {}


class StoreWriter(SinkWriter):
    def __init__(self, store, context):
        self.store = store
        self.context = context
        self.batches = []

    def name(self, checkpoint):
        return self.context.generation, self.context.node, checkpoint

    def write(self, rows):
        self.batches.append(rows)

    def close(self):
        self.store.visible[self.name(None)] = self.batches

    def abort(self):
        self.batches = []

    def prepare(self, checkpoint):
        self.store.prepared[self.name(checkpoint)] = self.batches
        self.batches = []
        return self.name(checkpoint)

    def commit(self, prepared):
        self.store.visible[prepared] = self.store.prepared[prepared]


class StoreSink(Sink):
    promise = "exactly-once"
    writer = StoreWriter

    def __init__(self, promise="exactly-once", writer=StoreWriter):
        self.promise = promise
        self.writer = writer
        self.store = Store()

    def open(self, context):
        return self.writer(self.store, context)


def visible(sink):
    return [batch for batches in sink.store.visible.values() for batch in batches]


class CommitsTwice(StoreWriter):
    def commit(self, prepared):
        self.store.visible[len(self.store.visible)] = self.store.prepared[prepared]


class ShowsAtPrepare(StoreWriter):
    def prepare(self, checkpoint):
        name = super().prepare(checkpoint)
        self.commit(name)
        return name


class ShowsAtWrite(StoreWriter):
    def write(self, rows):
        self.store.visible[len(self.store.visible)] = [rows]

    def prepare(self, checkpoint):
        return None


class RestartsNumbers(StoreWriter):
    """Transactions of a hung writer replace those of the one that was started in its place."""

    def name(self, checkpoint):
        return self.context.instance, checkpoint


class KeepsRowsInMemory(StoreWriter):
    def prepare(self, checkpoint):
        self.transactions = {**getattr(self, "transactions", {}), checkpoint: self.batches}
        self.batches = []
        return checkpoint

    def commit(self, prepared):
        if prepared in getattr(self, "transactions", {}):
            self.store.visible[self.name(prepared)] = self.transactions[prepared]


class CommitsOnlyTheNewest(StoreWriter):
    newest = None

    def prepare(self, checkpoint):
        self.newest = super().prepare(checkpoint)
        return self.newest

    def commit(self, prepared):
        if prepared == self.newest:
            super().commit(prepared)


class ForgetsLastRows(StoreWriter):
    def prepare(self, checkpoint):
        name = super().prepare(checkpoint)
        self.store.prepared[name] = self.store.prepared[name][:1]
        return name


class RecoversNothing(StoreWriter):
    def recover(self, prepared, checkpoint):
        pass


class LargeHandle(StoreWriter):
    def prepare(self, checkpoint):
        return (*super().prepare(checkpoint), "x" * 20_000)


@pytest.mark.parametrize("promise", ["exactly-once", "at-least-once", "at-most-once"])
def test_sink_that_commits_in_two_phases_keeps_every_promise(promise):
    check_sink(lambda: StoreSink(promise), visible)


@pytest.mark.parametrize(
    ("writer", "message"),
    [
        (CommitsTwice, r"rows \[0, 1.* are repeated"),
        (ShowsAtPrepare, "are visible uncommitted"),
        (ShowsAtWrite, "are visible uncommitted"),
        (RestartsNumbers, "are (?:missing|visible uncommitted)"),
        (KeepsRowsInMemory, "are missing"),
        (CommitsOnlyTheNewest, "are missing"),
        (ForgetsLastRows, "are missing"),
        (RecoversNothing, "are missing"),
        (LargeHandle, "too large for a manifest"),
    ],
)
def test_broken_promise_of_a_sink_is_found(writer, message):
    with pytest.raises(AssertionError, match=message):
        check_sink(lambda: StoreSink(writer=writer), visible)


def test_sink_that_shows_rows_when_it_writes_them_shows_each_at_least_once():
    check_sink(lambda: StoreSink("at-least-once", ShowsAtWrite), visible)
    with pytest.raises(AssertionError, match="are repeated"):
        check_sink(lambda: StoreSink("at-most-once", ShowsAtWrite), visible)
    with pytest.raises(AssertionError, match="are missing"):
        check_sink(lambda: StoreSink("at-least-once", ForgetsLastRows), visible)


def test_sink_without_a_promise_is_refused():
    with pytest.raises(AssertionError, match=r"promises nothing: set Sink\.promise"):
        check_sink(lambda: StoreSink(promise=None), visible)

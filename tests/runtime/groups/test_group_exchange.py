"""What an old table of groups has split is split again before it takes credit; senders wait while they are paused."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.worker.groups.group_exchange import GroupExchange
from dask_elastic.runtime.worker.homes.first_tier import FirstTier
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId

ROWS = ExecutorId("rows", 0)
GROUPS = 4
OWNERS = (0, 0, 1, 1)


class Receiver:
    """An executor here that keeps what it is offered."""

    def __init__(self, taken, index):
        self.taken, self.index = taken, index

    def offer(self, origin, batch, nbytes):
        """Keep a batch."""
        self.taken.append((self.index, batch.rows["k"].to_pylist(), batch.version))

    def receive_end_mark(self, mark):
        """Keep a mark."""
        self.taken.append((self.index, "mark", mark.version))


class Job:
    """A job with a source and an operator of two executors on one node."""

    def __init__(self, window=1):
        summaries = (
            SimpleNamespace(name="rows", kind="source", shards=1),
            SimpleNamespace(name="op", kind="compute", shards=GROUPS),
        )
        homes = {"rows": (0,), "op": (0, 0)}
        spec = SimpleNamespace(
            node=0, nodes=("here",), homes=homes, summaries=summaries, groups={"op": OWNERS},
            node_of=lambda one: 0, instances=lambda name: [ExecutorId(name, i) for i in range(len(homes[name]))],
            options=SimpleNamespace(channel_window=window, queue_time=1.0),
        )  # fmt: skip
        self.tier, self.taken = FirstTier(spec), []
        here = {ExecutorId("op", index): Receiver(self.taken, index) for index in (0, 1)}
        members = SimpleNamespace(spec=spec, tier=self.tier)
        self.exchange = GroupExchange(
            members, {}, here, {}, None, lambda: False, IdleWatch(lambda: None), LeaseGate(needed=False)
        )

    @property
    def table(self):
        """The current table."""
        return self.tier.groups_of("op")

    def batch(self, keys, executor=0, table=None):
        """Rows whose groups are their keys, as an emitter has split them by a table."""
        rows = pa.record_batch({"k": pa.array(keys, pa.int64())})
        version = (table or self.table).version
        return Delivery(ExecutorId("op", executor), Batch(rows, np.array(keys, np.uint64), 0.0, version=version))

    def move(self, moves, pauses=False):
        """Let the source use the next table."""
        if pauses:
            self.exchange.pause()
        table = self.table.moved(moves)
        for origin, mark in self.tier.switch_groups("op", table, [ROWS], pauses):
            self.exchange.send_mark(origin, "op", mark)


@pytest.fixture
def job():
    return Job()


def test_table_and_key_spaces_are_those_of_the_spec(job):
    assert job.table.owners.tolist() == [*OWNERS]
    assert job.tier.spaces == {"op": KeySpace.of_groups(GROUPS)}
    assert job.tier.groups_of("rows") is None


def test_batch_of_an_old_table_is_split_again_behind_the_end_mark(job):
    old = job.batch([0, 1, 0])
    job.move({1: 1})
    assert job.exchange.deliver_now(ROWS, [old]) == (old.batch.nbytes, ())
    assert job.taken == [(0, "mark", 1), (1, "mark", 1), (0, [0, 0], 1), (1, [1], 1)]


def test_batch_of_a_newer_table_than_the_instance_uses_is_split_by_the_older_one(job):
    new = job.batch([0, 1], 1, GroupTable.of_owners((1, 1, 1, 1), (0, 0)).moved({2: 0}))
    job.exchange.deliver(ROWS, [new])
    assert job.taken == [(0, [0, 1], 0)]


def test_batch_that_has_waited_for_credit_goes_to_the_next_executor(job):
    for _ in range(2):
        assert job.exchange.deliver_now(ROWS, [job.batch([0])])[1] == ()
    waits = job.batch([0])
    assert job.exchange.deliver_now(ROWS, [waits, job.batch([2], 1)])[1][0] == waits, "there is no credit"
    taken = len(job.taken)
    job.move({0: 1})
    assert job.exchange.deliver_now(ROWS, [waits])[1] == ()
    assert job.taken[taken:] == [(0, "mark", 1), (1, "mark", 1), (1, [0], 1)]
    gates = job.exchange._gates[ROWS]
    assert [gates[ExecutorId("op", index)].batches for index in (0, 1)] == [2, 1]


def test_paused_instance_sends_no_batch_until_it_resumes(job):
    job.move({0: 1}, pauses=True)
    old = job.batch([0], table=GroupTable.of_owners(OWNERS, (0, 0)))
    assert job.exchange.deliver_now(ROWS, [old]) == (0, (old,))
    sending = threading.Thread(target=job.exchange.deliver, args=(ROWS, [old]))
    sending.start()
    sending.join(0.05)
    assert sending.is_alive()
    assert [one for one in job.taken if one[1] != "mark"] == []
    job.tier.resume("op", [ROWS])
    job.exchange.resume()
    sending.join(100)
    assert job.taken[-1] == (1, [0], 1)


def test_paused_instance_is_aborted_with_the_job(job):
    job.move({0: 1}, pauses=True)
    errors = []

    def send():
        try:
            job.exchange.deliver(ROWS, [job.batch([0])])
        except Aborted as error:
            errors.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    job.exchange.abort()
    sending.join(100)
    job.exchange.pause()
    send()
    assert len(errors) == 2, "also one that begins to wait after the end"


def test_credit_of_parts_of_a_batch_counts_as_one_batch(job):
    target = ExecutorId("op", 0)
    job.exchange.deliver(ROWS, [job.batch([0, 1, 0])])
    gate = job.exchange._gates[ROWS][target]
    nbytes = gate.used
    job.exchange.release(ROWS, target, 10, is_part=True)
    assert (gate.used, gate.batches) == (nbytes - 10, 1)
    job.exchange.release(ROWS, target, nbytes - 10)
    assert (gate.used, gate.batches) == (0, 0)

"""Copies of epochs on the Dask queue of an instance: those that it has not read, whatever clients take or add."""

from __future__ import annotations

import asyncio

import pytest
from distributed.protocol.serialize import ToPickle
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.queue_copies import EpochCopies
from dask_elastic.runtime.transport.epoch_rows import EpochRows
from dask_elastic.vocab.epoch import AttemptId, StagedPart

LIMIT = 3


class Copied:
    """A ledger of one instance, and the Dask queue beside it."""

    def __init__(self, instances=1):
        self.queue = asyncio.Queue(LIMIT)
        self.ledger = EpochLedger(instances, durable=True)
        self.copies = EpochCopies(self.queue, self.ledger, "job", "rows", "run", 0)

    def commit(self, epoch, small=None, instance=0):
        part = StagedPart(AttemptId("q", epoch, 0, "a"), instance, 10, 5)
        self.copies.add(self.ledger.commit("q", epoch, [part]), small)

    def acknowledge(self, number):
        self.ledger.acknowledge(0, number)
        self.copies.taken(number)

    def entries(self):
        """What is on the queue: bytes, the epochs of handles, or what a client has added."""
        values = [record["value"] for record in self.queue._queue]
        return [value.data.epoch if isinstance(value, ToPickle) else value for value in values]


@pytest.fixture
def copied():
    return Copied()


def test_small_epochs_are_bytes_and_large_ones_handles(copied):
    copied.commit(0, b"rows")
    copied.commit(1)
    part = StagedPart(AttemptId("q", 1, 0, "a"), 0, 10, 5)
    assert copied.queue._queue[0]["value"] == b"rows"
    assert copied.queue._queue[1]["value"].data == EpochRows("job", "rows", 0, "run", 2, "q", 1, (part,))


def test_epochs_of_other_instances_are_not_on_the_queue():
    copied = Copied(2)
    copied.commit(0, instance=1)
    copied.commit(1)
    assert copied.entries() == [1]


def test_epochs_that_found_no_room_follow_when_others_were_read(copied):
    for epoch in range(LIMIT + 2):
        copied.commit(epoch, b"%d" % epoch)
    assert copied.entries() == [b"0", b"1", b"2"]
    copied.acknowledge(2)
    assert copied.entries() == [b"2", b"3", b"4"]


def test_rewound_instance_has_handles_of_what_it_reads_again(copied):
    for epoch in range(3):
        copied.commit(epoch, b"rows")
    copied.acknowledge(3)
    assert copied.entries() == []
    copied.ledger.rewind(0, 1)
    copied.copies.rewound(1)
    assert copied.entries() == [1, 2]


def test_what_clients_have_put_stays(copied):
    own = {"type": "msgpack", "value": "their own"}
    copied.queue.put_nowait(own)
    copied.commit(0, b"rows")
    copied.acknowledge(1)
    assert copied.entries() == ["their own"]
    copied.commit(1)
    copied.copies.clear()
    assert copied.entries() == ["their own"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["commit", "acknowledge", "get", "rewind"]), max_size=30))
def test_queue_has_epochs_that_wait_each_once_and_in_order(steps):
    copied, reached, epochs, got = Copied(), 0, 0, []
    for step in steps:
        if step == "commit":
            copied.commit(epochs)
            epochs += 1
        elif step == "acknowledge" and reached < epochs:
            reached += 1
            copied.acknowledge(reached)
        elif step == "get" and copied.entries():
            got.append(copied.entries()[0])
            copied.queue.get_nowait()
        elif step == "rewind":
            reached, got = 0, []
            copied.ledger.rewind(0, 0)
            copied.copies.rewound(0)
        waiting = [epoch for epoch in range(reached, epochs) if epoch not in got]
        entries = copied.entries()
        assert entries == waiting[: len(entries)]
        assert len(entries) == LIMIT or len(entries) == len(waiting) or "get" in steps
        # The bound of epochs counts those that were not read, whatever is on the queue.
        assert copied.ledger.backlog() == epochs - reached
    assert copied.queue.qsize() <= LIMIT


def test_instance_that_waits_is_woken_by_an_epoch_and_by_the_end(copied):
    async def woken_by(action):
        waiting = asyncio.ensure_future(copied.copies.changed(100.0))
        await asyncio.sleep(0)
        action()
        await asyncio.wait_for(waiting, 50)

    asyncio.run(woken_by(lambda: copied.commit(0)))
    asyncio.run(woken_by(copied.copies.wake))
    asyncio.run(copied.copies.changed(1e-9))


def test_handle_counts_its_rows():
    parts = tuple(StagedPart(AttemptId("q", 1, number, "a"), 0, 10 + number, 5) for number in range(2))
    assert EpochRows("job", "rows", 0, "run", 2, "q", 1, parts).rows == 21

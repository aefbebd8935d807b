"""The spool of a source: what is acknowledged survives any restart, each batch once and in order."""

from __future__ import annotations

import logging
import threading
import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.spool.log import SpoolLog
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.queue_calls import NextRows, QueueItem, QueueItems, TakeRows
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox, SentBatch
from dask_elastic.runtime.worker.buffers.spool import Spool
from dask_elastic.runtime.worker.buffers.spooled_queue import spooled_rows
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.vocab.errors import CheckpointError, NodeLost, SourceError

SECONDS = 100


def rows(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def fail(error):
    raise error


class Run:
    """One generation of a source: a mailbox with a spool, whose thread runs."""

    def __init__(self, folder, after=0, start=True, keep=1):
        self.log = SpoolLog(folder, "spool/run/rows/0", next_generation(folder), segment_bytes=300)
        self.spool = Spool(self.log, after, keep)
        self.mailbox = Mailbox(spool=self.spool)
        self.threads = JobThreads("job", fail)
        if start:
            self.spool.start(self.threads, "spool")

    def send(self, sender, sequence, *numbers):
        """Offer a batch as a client's connection does."""
        assert self.mailbox.offer(rows(*numbers), 0.0, None, SentBatch(sender, sequence))

    def durable(self):
        """Wait until everything is acknowledged."""
        assert self.spool.wait_durable(SECONDS)

    def crash(self):
        """End the worker; what is not durable is lost."""
        self.mailbox.abort()
        assert self.threads.join(SECONDS) == []

    def read(self, batches=None):
        """The values that the source reads, up to the end of the mailbox, or so many batches."""
        found = []
        for batch in self.mailbox:
            found += batch["n"].to_pylist()
            if batches is not None and (batches := batches - 1) == 0:
                break
        return found


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), lives=st.integers(1, 4))
def test_acknowledged_batches_are_read_once_and_in_order_through_restarts(data, lives):
    folder = CheckpointFolder(f"memory://{time.monotonic_ns()}")
    sent = {"a": 0, "b": 0}
    wanted, after, covered = [], 0, 0
    for _ in range(lives):
        run = Run(folder, after)
        # Clients send again what the source has not acknowledged.
        for sender, count in sent.items():
            for sequence in range(run.spool.last_of(sender) + 1, count + 1):
                run.send(sender, sequence, len(wanted))
                wanted.append((sender, sequence))
        for sender in data.draw(st.lists(st.sampled_from(["a", "b"]), max_size=8)):
            sent[sender] += 1
            run.send(sender, sent[sender], len(wanted))
            wanted.append((sender, sent[sender]))
            run.send(sender, data.draw(st.integers(1, sent[sender])), -1)
        if data.draw(st.booleans()):
            run.durable()
            reached = data.draw(st.integers(covered, len(wanted)))
            run.spool.reached(1, reached)
            run.spool.complete(1)
            after = covered = reached
        run.crash()
        wanted = wanted[: run.log.last]
    run = Run(folder, after)
    run.mailbox.close()
    assert run.read() == list(range(after, len(wanted)))
    assert run.spool.offset == (len(wanted) if len(wanted) > after else after)
    for sender in sent:
        assert run.spool.last_of(sender) == sum(name == sender for name, _ in wanted)
    run.crash()


def test_replayed_rows_come_before_new_ones_and_keep_their_times(folder):
    first = Run(folder)
    first.mailbox.offer(rows(1), 0.0, 7.5, SentBatch("a", 1))
    first.send("a", 2, 2)
    first.durable()
    first.crash()
    again = Run(folder)
    again.send("a", 2, 2)
    again.send("a", 3, 3)
    again.mailbox.close()
    found = [(batch["n"].to_pylist(), again.mailbox.due, again.spool.offset) for batch in again.mailbox]
    assert found == [([1], 7.5, 1), ([2], None, 2), ([3], None, 3)]
    again.crash()


def test_end_of_input_survives_a_restart(folder):
    first = Run(folder)
    first.send("a", 1, 1)
    first.mailbox.end()
    first.durable()
    assert first.read() == [1]
    first.crash()
    again = Run(folder)
    assert again.mailbox.closed
    assert again.spool.ended
    with pytest.raises(SourceError):
        again.send("a", 2, 2)
    assert again.read() == [1]
    again.crash()


def test_spool_that_is_held_changes_no_more_and_acknowledges_what_came_meanwhile_when_it_is_released(folder):
    run = Run(folder)
    run.send("a", 1, 1)
    run.durable()
    assert run.spool.hold(3, SECONDS)
    files = folder.sizes("spool/run/rows/0")
    for checkpoint in (1, 2, 3):
        run.spool.reached(checkpoint, 1)
        run.spool.complete(checkpoint)
    run.send("a", 2, 2)
    run.spool.release(2)
    assert not run.spool.wait_durable(0.05)
    assert (run.spool.durable, folder.sizes("spool/run/rows/0")) == (1, files)
    run.spool.release(3)
    run.durable()
    # The release of a stop that failed may come before the call that it ends.
    assert run.spool.hold(3, SECONDS)
    run.send("a", 3, 3)
    run.durable()
    run.crash()
    assert run.log.last == 3


def test_hold_waits_until_what_is_being_written_is_durable(folder, monkeypatch):
    run = Run(folder, start=False)
    begun, goes_on = threading.Event(), threading.Event()
    append = run.log.append

    def slow(entries):
        begun.set()
        assert goes_on.wait(SECONDS)
        append(entries)

    monkeypatch.setattr(run.log, "append", slow)
    run.spool.start(run.threads, "spool")
    run.send("a", 1, 1)
    assert begun.wait(SECONDS)
    assert not run.spool.hold(1, 0.0)
    goes_on.set()
    assert run.spool.hold(1, SECONDS)
    assert run.spool.durable == 1
    run.crash()
    assert run.spool.hold(2, SECONDS)


def test_checkpoint_waits_until_its_rows_are_durable(folder):
    run = Run(folder, start=False)
    run.send("a", 1, 1)
    reached, called = [], threading.Event()
    run.spool.when_durable(lambda: (reached.append(run.spool.durable), called.set()))
    assert not run.spool.wait_durable(0.0)
    assert reached == []
    run.spool.start(run.threads, "spool")
    run.durable()
    assert called.wait(SECONDS)
    run.spool.when_durable(lambda: reached.append("now"))
    run.crash()
    assert reached == [1, "now"]


def test_only_entries_that_no_kept_checkpoint_needs_are_deleted(folder):
    run = Run(folder, keep=2)
    for number in range(1, 7):
        run.send("a", number, number)
        run.durable()
    for checkpoint, offset in ((1, 2), (2, 3), (3, 4), (5, 6)):
        run.spool.reached(checkpoint, offset)
    run.spool.complete(1)
    run.spool.complete(2)
    run.spool.complete(5)
    run.crash()
    again = Run(folder, start=False)
    assert again.log.first <= 4, "checkpoints 2 and 5 are kept; 3 was given up"
    assert [entry.number for entry in again.log.entries(3)] == [4, 5, 6]


def test_rows_wait_and_are_acknowledged_when_the_disk_has_space_again(folder, monkeypatch, caplog):
    monkeypatch.setattr("dask_elastic.runtime.worker.buffers.spool.RETRY_SECONDS", 0.01)
    failed = threading.Event()
    plain, attempts = SpoolLog.append, []

    def append(self, entries):
        attempts.append(len(entries))
        if len(attempts) < 4:
            failed.set()
            raise CheckpointError("No space left on device")
        plain(self, entries)

    monkeypatch.setattr(SpoolLog, "append", append)
    run = Run(folder)
    with caplog.at_level(logging.WARNING, "dask_elastic.checkpoint"):
        run.send("a", 1, 1)
        assert failed.wait(SECONDS)
        run.durable()
    run.crash()
    assert len(attempts) == 4
    assert caplog.text.count("No space left on device") == 1


def test_appends_that_fail_for_long_are_repeated_rarely(folder, monkeypatch):
    run = Run(folder)
    run.crash()
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2_000:
            run.spool._stopped.set()

    def fails(entries):
        raise CheckpointError("No space left on device")

    run.spool._stopped = Stopped(wait)
    monkeypatch.setattr(run.spool._log, "append", fails)
    assert not run.spool._append([None])
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert {*waits[5:]} == {10.0}


class Stopped(threading.Event):
    """An event whose waits are noted, and end at once."""

    def __init__(self, wait):
        super().__init__()
        self.wait = wait


def test_lost_worker_that_continues_acknowledges_nothing(folder, caplog):
    lost = Run(folder)
    lost.send("a", 1, 1)
    lost.durable()
    again = Run(folder)
    lost.send("a", 2, 2)
    assert lost.threads.join(SECONDS) == []
    assert not lost.spool.wait_durable(0.0)
    assert "has taken over" in caplog.text
    again.send("a", 2, 22)
    again.mailbox.close()
    assert again.read() == [1, 22]
    again.crash()


# queues


class Queue:
    """The scheduler's side of an output queue, and the workers that hold its rows."""

    def __init__(self):
        self.items = []
        self.writer = JobGeneration("writer", 1)
        self.ledger = "first"
        self.count = self.taken = 0
        self.ended = False
        self.lost = False

    def put(self, *numbers):
        self.count += 1
        self.items.append((QueueItem(self.count, "worker", self.count), rows(*numbers)))

    def ask(self, call):
        match call:
            case NextRows(_, ledger, after, _):
                behind = after if ledger == self.ledger else 0
                found = tuple(item for item, _ in self.items if item.number > behind)
                return QueueItems(found, self.ended, *self.writer, self.ledger)
            case TakeRows(_, ledger, through) if ledger == self.ledger:
                self.taken = through
                self.items = [(item, batch) for item, batch in self.items if item.number > through]

    def fetch(self, address, call):
        if self.lost:
            raise NodeLost("worker is lost")
        batch = next(batch for item, batch in self.items if item.item == call.item)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return memoryview(out.getvalue())

    def reader(self):
        return QueueReader("queue", self.ask, self.fetch)


def test_batches_of_a_queue_are_forgotten_when_they_are_durable(folder):
    queue = Queue()
    queue.put(1)
    run = Run(folder, start=False)
    batches = spooled_rows(queue.reader(), run.spool)
    assert next(batches)["n"].to_pylist() == [1]
    assert (queue.taken, run.spool.offset) == (0, 1)
    run.spool.start(run.threads, "spool")
    queue.ended = True
    assert list(batches) == []
    assert queue.taken == 1
    run.durable()
    assert run.spool.ended
    run.crash()


@pytest.mark.parametrize("taken", [False, True])
def test_batch_that_is_in_the_spool_and_in_the_queue_is_read_once(folder, taken):
    queue = Queue()
    queue.put(1)
    queue.put(2)
    run = Run(folder)
    batches = spooled_rows(queue.reader(), run.spool)
    next(batches)
    run.durable()
    if taken:
        next(batches)
        run.durable()
    run.crash()
    queue.put(3)
    queue.ended = True
    again = Run(folder)
    assert [batch["n"].to_pylist() for batch in spooled_rows(queue.reader(), again.spool)] == [[1], [2], [3]]
    again.durable()
    again.crash()
    last = Run(folder, after=2)
    assert [batch["n"].to_pylist() for batch in spooled_rows(queue.reader(), last.spool)] == [[3]]
    last.crash()


def test_reader_continues_with_the_ledger_of_a_writer_that_has_restarted():
    queue = Queue()
    queue.put(1)
    queue.put(2)
    batches = queue.reader().batches()
    assert next(batches)["n"].to_pylist() == [1]
    assert next(batches)["n"].to_pylist() == [2]
    queue.ledger, queue.count, queue.items = "second", 0, []
    queue.put(2)
    queue.put(3)
    queue.ended = True
    assert [batch["n"].to_pylist() for batch in batches] == [[2], [3]]


def test_reader_drops_items_of_a_lost_worker_once_the_writer_has_restarted():
    queue = Queue()
    queue.put(1)
    queue.lost = True
    plain = queue.fetch

    def fetch(address, call):
        if queue.ledger == "first":
            queue.ledger, queue.count, queue.items = "second", 0, []
            queue.put(5)
            queue.ended = True
            raise NodeLost("worker is lost")
        queue.lost = False
        return plain(address, call)

    queue.fetch = fetch
    assert [batch["n"].to_pylist() for batch in queue.reader().batches()] == [[5]]


def test_lost_rows_of_a_queue_are_an_error(monkeypatch):
    monkeypatch.setattr("dask_elastic.runtime.transport.queue_reader.LOST_SECONDS", 0.0)
    queue = Queue()
    queue.put(1)
    queue.lost = True
    with pytest.raises(SourceError, match=r"queue 'queue': the rows of item 1 are lost with worker worker.*'writer'"):
        list(queue.reader().batches())

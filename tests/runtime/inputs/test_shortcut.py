"""Few pushed rows are sent by the thread that receives them: order, credit, ends and errors, with faults put in."""

from __future__ import annotations

import random
import sys
import threading
from collections import defaultdict
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.connectors.sources.push import Push
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.read_ahead import ReadAhead
from dask_elastic.runtime.worker.buffers.shortcut import Shortcut, conversion_of
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, SchemaMismatch, SourceError
from dask_elastic.vocab.identity import ExecutorId

SECONDS = 60
SCHEMA = pa.schema({"sender": pa.int64(), "n": pa.int64()})
TARGET = ExecutorId("out", 0)


def row(number, sender=0):
    return pa.record_batch({"sender": [sender], "n": [number]}, schema=SCHEMA)


class Credit:
    """An exchange that has credit, or none, and notes what leaves, and in which thread."""

    def __init__(self):
        self.idle_watch = SimpleNamespace(note=lambda: None)
        self.numbers, self.senders, self.threads = [], [], []
        self.waited = set()
        self.open = threading.Event()
        self.open.set()
        self.lacks = lambda: not self.open.is_set()
        self.aborted = False

    def deliver_now(self, origin, outputs):
        if self.aborted:
            raise Aborted
        if outputs and self.lacks():
            return 0, outputs
        return self._leave(outputs), ()

    def deliver(self, origin, outputs):
        self.waited.add(threading.current_thread().name)
        assert self.open.wait(SECONDS)
        return self._leave(outputs)

    def _leave(self, outputs):
        for _, batch in outputs:
            self.numbers += batch.rows["n"].to_pylist()
            self.senders += batch.rows["sender"].to_pylist()
            self.threads.append(threading.current_thread().name)
        return sum(batch.nbytes for _, batch in outputs)

    def join_bytes(self, origin):
        return None

    def emit_barrier(self, barrier):
        raise AssertionError("this job has no checkpoints")

    def backpressured(self, origin):
        return 0.0


class Worker:
    """A source of pushed rows in its threads, and an emitter that refuses the row -1."""

    def __init__(self, source=None):
        self.exchange, self.mailbox, self.errors = Credit(), Mailbox(), []
        self.ended = threading.Event()
        self.threads = JobThreads("job", self.fail)
        emitter = SimpleNamespace(emit=self.emit)
        self.source = SourceThread(
            ExecutorId("rows", 0), source or Push(SCHEMA), 1, emitter, self.mailbox, None, self.threads, self.exchange,
            None, None, lambda identity: self.ended.set(), None, SourcePosition(),
        )  # fmt: skip
        self.source.start()

    def emit(self, batches, due):
        if any(-1 in batch["n"].to_pylist() for batch in batches):
            raise ElasticError("the row -1 is refused")
        return [(TARGET, Batch(rows, None, due)) for rows in batches]

    def fail(self, error):
        self.errors.append(error)
        self.exchange.aborted = True
        self.threads.end()
        self.source.abort()

    def send(self, *batches):
        """Offer batches that have arrived at once, as the thread of a connection does."""
        for batch in batches:
            assert self.mailbox.offer(batch, SECONDS, brings=True)
        self.mailbox.bring()

    def has_sent(self, count):
        """Wait until so many rows have left."""
        wait_for(lambda: len(self.exchange.numbers) >= count)

    def is_idle(self):
        """Whether the reading thread waits for rows, and no other one sends."""
        mailbox = self.mailbox
        return mailbox._waits and not mailbox._letters and not self.source._read_ahead._sending

    def warm(self):
        """Have rows read until they count as brief; returns how many."""
        wait_for(lambda: self.mailbox.shortcut is not None)
        for number in range(5):
            wait_for(self.is_idle)
            assert self.mailbox.offer(row(number), SECONDS)
            self.has_sent(number + 1)
        wait_for(self.is_idle)
        return 5

    def close(self):
        self.mailbox.close()
        assert self.ended.wait(SECONDS)
        assert self.threads.join(SECONDS) == []


def wait_for(condition):
    waits = threading.Event()
    for _ in range(int(SECONDS / 0.001)):
        if condition():
            return
        waits.wait(0.001)
    raise AssertionError("the condition does not hold in time")


HERE = threading.current_thread().name


def test_rows_that_arrive_at_once_are_joined_and_sent_by_the_calling_thread():
    worker = Worker()
    count = worker.warm()
    assert HERE not in worker.exchange.threads, "rows of unknown cost are read"
    worker.send(*map(row, range(5, 9)))
    assert worker.exchange.numbers == list(range(9))
    assert worker.exchange.threads[count:] == [HERE]
    assert worker.source.rows == 9
    worker.send(pa.record_batch({"n": pa.array([9], pa.int32()), "sender": [1]}))
    assert worker.exchange.numbers[9:] == [9], "rows are converted as by reading"
    worker.close()


def test_many_rows_are_read():
    worker = Worker()
    worker.warm()
    worker.send(pa.record_batch({"sender": [0] * 300, "n": range(300)}, schema=SCHEMA))
    worker.has_sent(305)
    assert HERE not in worker.exchange.threads
    worker.close()


def test_rows_of_long_work_are_read():
    worker = Worker()
    worker.warm()
    for _ in range(15):
        worker.source._cost.add(1, 0.01)
    worker.send(row(5))
    worker.has_sent(6)
    assert HERE not in worker.exchange.threads
    worker.close()


def lacking_credit(patience=0.05):
    """Send rows that lack credit, and rows behind them, then the end, then give credit; return what came too early.

    The end has so many seconds to come too early.
    """
    worker, early = Worker(), []
    worker.warm()
    worker.exchange.open.clear()
    sending = threading.Thread(target=worker.send, args=(row(5),), name="connection")
    sending.start()
    wait_for(lambda: not sending.is_alive() or worker.exchange.waited)
    for number in range(6, 9):
        worker.send(row(number))
    worker.mailbox.close()
    if worker.ended.wait(patience):
        early.append("end")
    worker.exchange.open.set()
    sending.join(SECONDS)
    worker.close()
    return worker.exchange, early


def test_rows_that_lack_credit_are_left_and_nothing_overtakes_them():
    exchange, early = lacking_credit()
    assert exchange.waited == {"elastic-job-rows[0]"}
    assert exchange.numbers == list(range(9))
    assert not early


def test_mutant_that_waits_for_credit_in_the_connection_is_found(monkeypatch):
    monkeypatch.setattr(SourceThread, "_pass", lambda self, rows, due: self._send(rows, due) or False)
    exchange, _ = lacking_credit()
    assert "connection" in exchange.waited


def test_mutant_that_forgets_what_was_left_is_found(monkeypatch):
    end = ReadAhead.end
    monkeypatch.setattr(ReadAhead, "end", lambda self, rest=False: end(self))
    exchange, early = lacking_credit(SECONDS)
    assert exchange.numbers != list(range(9))
    assert early == ["end"]


def from_many_threads(senders=3, each=250):
    """Send from several connections while credit comes and goes; returns the numbers of each sender as they left."""
    worker, chosen = Worker(), random.Random(11)
    first = worker.warm()
    worker.exchange.lacks = lambda: chosen.random() < 0.1

    def send(sender):
        rolls = random.Random(sender)
        number = 0
        while number < each:
            count = min(rolls.choice((1, 1, 1, 2, 5)), each - number)
            worker.send(*(row(number + place, sender) for place in range(count)))
            number += count

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=send, args=(1 + sender,), name="connection") for sender in range(senders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        worker.close()
    finally:
        sys.setswitchinterval(before)
    by_sender = defaultdict(list)
    for sender, number in zip(worker.exchange.senders[first:], worker.exchange.numbers[first:], strict=True):
        by_sender[sender].append(number)
    assert "connection" in worker.exchange.threads, "some rows take the shortcut"
    return by_sender


def test_rows_of_each_sender_keep_their_order_and_none_is_lost():
    found = from_many_threads()
    assert found == {sender: list(range(250)) for sender in (1, 2, 3)}


def test_mutant_that_sends_while_others_send_is_found(monkeypatch):
    monkeypatch.setattr(ReadAhead, "_is_free", lambda self: True)
    monkeypatch.setattr(Mailbox, "_passing", property(lambda self: False, lambda self, value: None), raising=False)
    held = threading.Event()
    worker = Worker()
    worker.warm()
    worker.exchange.lacks = lambda: threading.current_thread().name == "connection" and not held.wait(SECONDS)
    sending = threading.Thread(target=worker.send, args=(row(5),), name="connection")
    sending.start()
    wait_for(lambda: worker.source._departures.rows == 6)
    assert worker.mailbox.offer(row(6), SECONDS)
    worker.has_sent(6)
    held.set()
    sending.join(SECONDS)
    assert worker.exchange.numbers[5:] != [5, 6]
    worker.close()


def test_reading_thread_takes_nothing_while_another_one_sends():
    worker, held, begun = Worker(), threading.Event(), threading.Event()
    worker.warm()

    def lacks():
        begun.set()
        return not held.wait(SECONDS)

    worker.exchange.lacks = lacks
    sending = threading.Thread(target=worker.send, args=(row(5),), name="connection")
    sending.start()
    assert begun.wait(SECONDS)
    worker.send(row(6))
    worker.mailbox.close()
    assert len(worker.mailbox._letters) == 1
    held.set()
    sending.join(SECONDS)
    worker.close()
    assert worker.exchange.numbers[5:] == [5, 6]


@pytest.mark.parametrize("fused", [True, False], ids=["fused logic", "conversion"])
def test_error_fails_the_job_and_nothing_behind_leaves(fused):
    worker = Worker()
    worker.warm()
    failing, go_on = threading.Event(), threading.Event()
    fail = worker.fail

    def hold_and_fail(error):
        failing.set()
        assert go_on.wait(SECONDS)
        fail(error)

    worker.threads._fail = hold_and_fail
    wrong = row(-1) if fused else pa.record_batch({"x": [1]})
    sending = threading.Thread(target=worker.send, args=(wrong,), name="connection")
    sending.start()
    assert failing.wait(SECONDS)
    for number in range(5, 8):
        worker.send(row(number))
    assert worker.mailbox._letters
    go_on.set()
    sending.join(SECONDS)
    assert worker.threads.join(SECONDS) == []
    assert worker.exchange.numbers == list(range(5))
    assert [type(error) for error in worker.errors] == [ElasticError if fused else SchemaMismatch]


def test_other_errors_of_conversion_name_the_source():
    class Odd(Push):
        def accept(self, rows):
            if rows["n"][0].as_py() == 7:
                raise KeyError("odd")
            return rows

    worker = Worker(Odd(SCHEMA))
    worker.warm()
    worker.send(row(7))
    assert worker.threads.join(SECONDS) == []
    assert isinstance(worker.errors[0], SourceError)
    assert "source 'rows' could not be read: KeyError" in str(worker.errors[0])
    assert "in accept\n    raise KeyError" in str(worker.errors[0])


def test_source_that_reads_in_its_own_way_is_always_read():
    class Twice(Push):
        def read(self, context):
            for batch, offset in super().read(context):
                yield batch, offset
                yield batch, offset

    class Same(Twice):
        def converts(self):
            return Push.converts(self)

    assert conversion_of(Twice(SCHEMA)) is None
    assert conversion_of(Same(SCHEMA)) is not None
    worker = Worker(Twice(SCHEMA))
    wait_for(lambda: worker.mailbox._waits)
    assert worker.mailbox.shortcut is None
    worker.send(row(1))
    worker.has_sent(2)
    worker.close()
    assert worker.exchange.numbers == [1, 1]


def test_source_with_a_rate_is_always_read():
    worker = Worker(Push(SCHEMA, rate=1e6))
    wait_for(lambda: worker.mailbox._waits)
    assert worker.mailbox.shortcut is None
    worker.send(row(1))
    worker.has_sent(1)
    worker.close()


def test_full_mailbox_is_read_while_its_rows_wait_to_be_brought():
    mailbox = Mailbox(limit=1)
    mailbox.shortcut = Shortcut(ReadAhead(), None, None, None, None, None, None)
    read = []
    reading = threading.Thread(target=lambda: read.extend(batch["n"].to_pylist() for batch in mailbox))
    reading.start()
    for number in range(3):
        assert mailbox.offer(row(number), SECONDS, brings=True)
    mailbox.close()
    reading.join(SECONDS)
    assert read == [[0], [1], [2]]

"""Credit gates, mailboxes, doorbells and dead letters: blocking and waking of threads, and their limits."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from dask_elastic.executor.error_policy import FailedRows
from dask_elastic.runtime.transport.credit import Aborted, CreditGate
from dask_elastic.runtime.transport.credit_waits import CreditWaits
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.dead_letters import DeadLetters
from dask_elastic.vocab.errors import SourceError

ROWS = pa.record_batch({"v": [1, 2, 3, 4]})


class InThread:
    """Runs a function on another thread and keeps its result or error."""

    def __init__(self, run):
        self.result = None
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self.thread.start()

    def _run(self, run):
        try:
            self.result = run()
        except (Aborted, SourceError) as error:
            self.error = error

    def done(self):
        """Wait until the function has returned."""
        self.thread.join(100)
        assert not self.thread.is_alive()
        return self


def test_credit_gate_blocks_once_window_is_used_up():
    gate = CreditGate(100, queue_time=1.0)
    gate.acquire(60)
    gate.acquire(60)
    assert gate.full
    third = InThread(lambda: gate.acquire(1))
    third.thread.join(0.05)
    assert third.thread.is_alive()
    gate.release(60)
    third.done()
    assert gate.used == 61
    assert gate.batches == 2


def test_credit_of_a_sender_that_has_left_is_counted_at_its_next_home():
    old, new = CreditGate(100, queue_time=1.0), CreditGate(100, queue_time=1.0)
    for nbytes in (60, 50, 40):
        old.acquire(nbytes) if not old.full else old.arrive(nbytes, 1)
    assert old.release(60)
    # Some credit reaches the next home before the executor does.
    assert new.release(50)
    new.arrive(*old.leave())
    assert not old.release(40), "the old home passes it on"
    assert (new.used, new.batches) == (40, 1)
    new.release(40)
    assert (new.used, new.batches) == (0, 0)


def test_credit_gate_admits_two_oversized_batches_at_a_time():
    gate = CreditGate(10, queue_time=1.0)
    gate.acquire(1_000)
    assert not gate.full
    gate.acquire(1_000)
    assert gate.full
    gate.release(1_000)
    assert not gate.full


def test_aborted_credit_gate_raises_in_all_waiting_threads():
    gate = CreditGate(1, queue_time=1.0)
    gate.acquire(1)
    gate.acquire(1)
    waiting = [InThread(lambda: gate.acquire(1)) for _ in range(3)]
    gate.abort()
    assert all(isinstance(one.done().error, Aborted) for one in waiting)
    with pytest.raises(Aborted):
        gate.acquire(1)


def test_sender_without_credit_counts_as_backpressured_while_it_waits():
    times = [10.0]
    waits = CreditWaits(lambda: times[0])
    gate = CreditGate(1, 1.0, waits)
    gate.acquire(1)
    gate.acquire(1)
    assert waits.share() == 0.0
    blocked = InThread(lambda: gate.acquire(1))
    for _ in range(10_000):
        if gate._waiting:
            break
        blocked.thread.join(0.01)
    assert gate._waiting, "it has read the clock by then"
    times[0] = 11.0
    assert waits.share() == 1.0
    times[0] = 12.0
    gate.release(1)
    blocked.done()
    times[0] = 14.0
    assert waits.share() == pytest.approx(1 / 3), "one of the three seconds since the last report"
    times[0] = 20.0
    assert waits.share() == 0.0


def test_mailbox_refuses_when_full_and_accepts_after_a_read():
    mailbox = Mailbox(limit=ROWS.nbytes)
    assert mailbox.offer(ROWS, 0.0)
    assert not mailbox.offer(ROWS, 0.01)
    batches = iter(mailbox)
    assert next(batches) is ROWS
    assert mailbox.offer(ROWS, 0.0)
    mailbox.close()
    assert list(batches) == [ROWS]


def test_closed_mailbox_refuses_offers_and_wakes_waiting_threads():
    mailbox = Mailbox(limit=1)
    assert mailbox.offer(ROWS, 0.0)
    offering = InThread(lambda: mailbox.offer(ROWS, 10.0))
    mailbox.close()
    assert isinstance(offering.done().error, SourceError)
    reading = InThread(lambda: list(mailbox))
    assert reading.done().result == [ROWS]


def test_mailbox_joins_waiting_batches_and_keeps_oldest_due_time():
    mailbox = Mailbox()
    for due in (5.0, 3.0, 4.0):
        mailbox.offer(ROWS, 0.0, due)
    mailbox.offer(ROWS, 0.0)
    mailbox.offer(pa.record_batch({"w": [1]}), 0.0)
    mailbox.close()
    read = [(batch.num_rows, mailbox.due) for batch in mailbox]
    assert read == [(12, 3.0), (4, None), (1, None)]


def test_mailbox_does_not_join_beyond_the_limit():
    mailbox = Mailbox()
    for size in (30_000, 2_000, 2_000):
        mailbox.offer(pa.record_batch({"v": range(size)}), 0.0)
    mailbox.close()
    assert [batch.num_rows for batch in mailbox] == [32_000, 2_000]


def test_mailbox_of_tiny_batches_is_bounded_in_number():
    mailbox = Mailbox(limit=100_000)
    taken = sum(mailbox.offer(pa.record_batch({"v": [1]}), 0.0) for _ in range(1_000))
    assert 50 <= taken <= 100


def test_mailbox_tells_watchers_once_that_it_is_closed():
    mailbox, told = Mailbox(), []
    mailbox.watch(lambda: told.append("first"))
    second = lambda: told.append("second")  # noqa: E731
    mailbox.watch(second)
    mailbox.unwatch(second)
    mailbox.close()
    mailbox.abort()
    assert told == ["first"]
    mailbox.watch(lambda: told.append("late"))
    assert told == ["first", "late"]


def test_doorbell_rung_before_wait_ends_the_wait():
    bell = Doorbell()
    bell.ring()
    assert InThread(bell.wait).done().error is None
    waiting = InThread(bell.wait)
    bell.ring()
    waiting.done()


def test_dead_letters_beyond_limit_are_counted_but_not_kept():
    letters = DeadLetters(limit=1)
    for start in range(4):
        letters.add(FailedRows("tidy", [f"ValueError: {start}"], ROWS.slice(start, 1)))
    letters.add(FailedRows("other", ["KeyError"], ROWS.slice(0, 1)))
    assert letters.counts == {"tidy": 4, "other": 1}
    kept = letters.rows("tidy")
    assert kept.to_pydict() == {"v": [1], "__error": ["ValueError: 0"]}
    assert letters.rows("other") is None


def test_dead_letters_of_one_batch_are_kept_up_to_limit():
    rows = pa.record_batch({"v": range(1_000)})
    letters = DeadLetters(limit=4_000)
    letters.add(FailedRows("tidy", ["ValueError"] * 1_000, rows))
    assert letters.counts == {"tidy": 1_000}
    kept = letters.rows("tidy")["v"].to_pylist()
    assert kept == [*range(len(kept))]
    assert 100 < len(kept) < 250


def test_dead_letters_memory_is_bounded_per_row():
    letters = DeadLetters(limit=2**20)
    before = pa.total_allocated_bytes()
    for number in range(10_000):
        letters.add(FailedRows("tidy", ["ValueError"], ROWS.slice(number % 4, 1)))
    other = pa.record_batch({"w": ["x"]})
    letters.add(FailedRows("mixed", ["ValueError"], ROWS.slice(0, 1)))
    letters.add(FailedRows("mixed", ["ValueError"], other))
    assert pa.total_allocated_bytes() - before < 10_000 * 100
    assert letters.rows("tidy")["v"].to_pylist() == [1, 2, 3, 4] * 2_500


def test_dead_letters_memory_is_bounded_if_their_columns_alternate():
    letters = DeadLetters(limit=2**20)
    others = pa.record_batch({"w": pa.array([7], pa.int64())})
    before = pa.total_allocated_bytes()
    for _ in range(10_000):
        for rows in (ROWS.slice(0, 1), others):
            letters.add(FailedRows("mixed", ["ValueError"], rows))
    assert pa.total_allocated_bytes() - before < 20_000 * 100
    assert sum(map(len, letters._kept.values())) == 20
    found = letters.rows("mixed")
    assert (found["v"].to_pylist().count(1), found["w"].to_pylist().count(7)) == (10_000, 10_000)


def test_dead_letters_of_different_columns_are_one_table():
    letters = DeadLetters()
    letters.add(FailedRows("mixed", ["ValueError"], ROWS.slice(0, 1)))
    letters.add(FailedRows("mixed", ["KeyError"], pa.record_batch({"w": ["x"]})))
    assert letters.rows("mixed").to_pydict() == {
        "v": [1, None],
        "__error": ["ValueError", "KeyError"],
        "w": [None, "x"],
    }

"""Batches of a source are sent in order, whether its reading or its sending thread sends them."""

from __future__ import annotations

import math
import random
import sys
import threading
import time

import pyarrow as pa
import pytest

from dask_elastic.runtime.worker.buffers import read_ahead as read_ahead_module
from dask_elastic.runtime.worker.buffers.read_ahead import WAITING_BYTES, ReadAhead


def row(number):
    return pa.record_batch({"n": [number]})


@pytest.fixture
def sent():
    return []


def test_batch_passed_through_empty_queue_is_sent_by_reading_thread(sent):
    read_ahead = ReadAhead()
    assert read_ahead.pass_through(row(1), 2.0, lambda rows, due: sent.append((rows["n"].to_pylist(), due)))
    assert sent == [([1], 2.0)]


def test_batch_passed_through_filled_queue_is_queued(sent):
    read_ahead = ReadAhead()
    read_ahead.put(row(1), 1.0)
    read_ahead.pass_through(row(2), 2.0, lambda *given: sent.append(given))
    assert sent == []
    rows, due = read_ahead.take()
    assert (rows["n"].to_pylist(), due) == ([1, 2], 1.0)
    read_ahead.pass_through(row(3), 3.0, lambda *given: sent.append(given))
    assert sent == [], "the taker is still sending"
    assert read_ahead.take()[0]["n"].to_pylist() == [3]


def test_held_batches_leave_with_the_one_that_is_passed_through(sent):
    read_ahead = ReadAhead()
    other = pa.record_batch({"m": [2.0]})
    for number, rows in enumerate((row(0), row(1), other)):
        assert read_ahead.hold(rows, float(number))
    assert read_ahead.holds
    read_ahead.pass_through(row(3), 3.0, lambda rows, due: sent.append((rows.to_pydict(), due)))
    assert sent == [({"n": [0, 1]}, 0.0), ({"m": [2.0]}, 2.0), ({"n": [3]}, 3.0)]
    assert not read_ahead.holds


def test_held_batches_are_sent_by_taking_thread_when_reading_thread_is_blocked():
    read_ahead = ReadAhead()
    read_ahead.hold(row(1), 1.0)
    read_ahead.hold(row(2), 2.0)
    rows, due = read_ahead.take()
    assert (rows["n"].to_pylist(), due) == ([1, 2], 1.0)
    assert not read_ahead.holds


def taking(read_ahead):
    """Start a thread that takes one batch; return it, and what it takes, once it waits."""
    taken = []
    taker = threading.Thread(target=lambda: taken.append(read_ahead.take()))
    taker.start()
    for _ in range(10_000):
        if read_ahead._changed._waiters:
            return taker, taken
        taker.join(0.01)
    raise AssertionError("the thread does not wait for a batch")


def test_taking_thread_that_waits_sends_a_held_batch_when_reading_thread_is_blocked():
    read_ahead = ReadAhead()
    taker, taken = taking(read_ahead)
    read_ahead.hold(row(1), 1.0)
    taker.join(100)
    assert [(rows["n"].to_pylist(), due) for rows, due in taken] == [([1], 1.0)]
    assert not read_ahead.holds


def test_taking_thread_leaves_held_batches_to_reading_thread(monkeypatch, sent):
    # A reading thread that the system suspends must not count as blocked here.
    monkeypatch.setattr(read_ahead_module, "HELD_SECONDS", 100)
    read_ahead = ReadAhead()
    taker, taken = taking(read_ahead)
    # Each of these wakes it, and it has to wait again.
    read_ahead.hold(row(1), 1.0)
    read_ahead.hold(row(2), 2.0)
    read_ahead.pass_through(row(3), 3.0, lambda rows, due: sent.append(rows["n"].to_pylist()))
    read_ahead.close()
    taker.join(100)
    assert (sent, taken) == ([[1, 2, 3]], [None])


@pytest.mark.parametrize("then", ["put", "close"])
def test_held_batches_are_taken_with_what_is_put_behind_them_and_at_the_end(then):
    read_ahead = ReadAhead()
    read_ahead.hold(row(1), 1.0)
    if then == "put":
        read_ahead.put(row(2), 2.0)
    read_ahead.close()
    assert read_ahead.take()[0]["n"].to_pylist() == ([1, 2] if then == "put" else [1])
    assert read_ahead.take() is None


def test_poked_taking_thread_leaves_held_batches():
    read_ahead = ReadAhead()
    read_ahead.hold(row(1), 1.0)
    read_ahead.poke()
    assert read_ahead.take() == (None, 0.0)
    read_ahead.pass_through(row(2), 2.0, lambda rows, due: pytest.fail("the taking thread is not done"))
    assert read_ahead.take()[0]["n"].to_pylist() == [1, 2]


def test_batches_are_held_up_to_the_bytes_that_may_wait(monkeypatch):
    monkeypatch.setattr(read_ahead_module, "HELD_SECONDS", 100)
    read_ahead = ReadAhead()
    large = pa.record_batch({"n": [bytes(WAITING_BYTES // 2)]})
    reader = threading.Thread(target=lambda: [read_ahead.hold(large, float(number)) for number in range(3)])
    reader.start()
    rows, due = read_ahead.take()
    reader.join(100)
    assert (rows.num_rows, due) == (2, 0.0)
    assert not read_ahead.holds
    assert read_ahead.take()[1] == 2.0


@pytest.mark.parametrize(("columns", "least"), [(1, 600), (20, 5_000)])
@pytest.mark.parametrize("append", ["put", "hold"])
def test_batches_of_one_row_wait_within_the_memory_that_they_take(monkeypatch, columns, least, append):
    class Full(Exception):
        """Raised where the reading thread would wait for room."""

    def wait():
        raise Full

    read_ahead = ReadAhead()
    monkeypatch.setattr(read_ahead._changed, "wait", wait)
    rows = pa.record_batch({f"n{number}": [1] for number in range(columns)})

    def fill():
        for _ in range(WAITING_BYTES // least):
            getattr(read_ahead, append)(rows, 1.0)

    with pytest.raises(Full):
        fill()
    assert read_ahead.take()[0].num_rows > 2_000


def test_room_of_held_batches_is_free_after_they_were_passed_through(sent):
    read_ahead = ReadAhead()
    large = pa.record_batch({"n": [bytes(WAITING_BYTES)]})
    for due in range(3):
        read_ahead.hold(large, float(due))
        read_ahead.pass_through(row(due), float(due), lambda rows, due: sent.append(due))
    assert sent == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_held_batches_are_no_silence_of_the_source():
    read_ahead = ReadAhead(until=time.monotonic)
    read_ahead.hold(row(1), 1.0)
    assert read_ahead.take()[0]["n"].to_pylist() == [1]


def test_take_timeout_keeps_reading_thread_from_sending(sent):
    read_ahead = ReadAhead(until=lambda: time.monotonic() + 0.01)
    assert read_ahead.take() == (None, 0.0)
    read_ahead.pass_through(row(1), 1.0, lambda *given: sent.append(given))
    assert sent == [], "the taker is not done"
    assert read_ahead.take()[0]["n"].to_pylist() == [1]
    assert read_ahead.take() == (None, 0.0)
    read_ahead.close()
    assert read_ahead.take() is None


def test_taking_thread_wakes_when_a_send_in_the_reading_thread_makes_it_due(sent):
    until = [math.inf]
    read_ahead = ReadAhead(until=lambda: until[0])
    taken = []
    taker = threading.Thread(target=lambda: taken.append(read_ahead.take()))
    taker.start()

    def send(rows, due):
        sent.append(due)
        until[0] = time.monotonic() + 0.01

    read_ahead.pass_through(row(1), 1.0, send)
    taker.join(100)
    assert (taken, sent) == ([(None, 0.0)], [1.0])


def test_taking_thread_ends_after_reading_thread_has_sent():
    read_ahead = ReadAhead()
    begun, go_on, order = threading.Event(), threading.Event(), []

    def send(rows, due):
        begun.set()
        assert go_on.wait(100)
        order.append("sent")

    reader = threading.Thread(target=read_ahead.pass_through, args=(row(1), 0.0, send))
    taker = threading.Thread(target=lambda: order.append(read_ahead.take()))
    reader.start()
    assert begun.wait(100)
    read_ahead.close()
    taker.start()
    go_on.set()
    for thread in (reader, taker):
        thread.join(100)
    assert order == ["sent", None]


def test_send_error_of_reading_thread_does_not_block_taking_thread():
    read_ahead = ReadAhead()

    def fail(rows, due):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        read_ahead.pass_through(row(1), 0.0, fail)
    read_ahead.put(row(2), 0.0)
    assert read_ahead.take()[0]["n"].to_pylist() == [2]


def test_batches_sent_by_either_thread_are_neither_lost_nor_reordered(sent):
    read_ahead, chosen = ReadAhead(), random.Random(4)

    def send(rows, due):
        sent.extend(rows["n"].to_pylist())

    def take_all():
        while (taken := read_ahead.take()) is not None:
            send(*taken)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        taker = threading.Thread(target=take_all)
        taker.start()
        for number in range(5_000):
            way = chosen.choice(("pass", "put", "hold", "hold"))
            if way == "pass":
                read_ahead.pass_through(row(number), 0.0, send)
            elif way == "put":
                read_ahead.put(row(number), 0.0)
            else:
                read_ahead.hold(row(number), 0.0)
        read_ahead.close()
        taker.join(100)
    finally:
        sys.setswitchinterval(before)
    assert sent == list(range(5_000))

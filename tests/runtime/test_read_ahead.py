"""Batches pass from a source's reader to its sender in order, whoever of the two sends them."""

from __future__ import annotations

import random
import sys
import threading

import pyarrow as pa
import pytest

from dask_elastic.runtime.worker.buffers.read_ahead import ReadAhead


def row(number):
    return pa.record_batch({"n": [number]})


@pytest.fixture
def sent():
    return []


def test_batch_passed_through_empty_queue_is_sent_by_reading_thread(sent):
    handoff = ReadAhead()
    assert handoff.pass_through(row(1), 2.0, lambda rows, due: sent.append((rows["n"].to_pylist(), due)))
    assert sent == [([1], 2.0)]


def test_batch_passed_through_filled_queue_is_queued(sent):
    handoff = ReadAhead()
    handoff.put(row(1), 1.0)
    handoff.pass_through(row(2), 2.0, lambda *given: sent.append(given))
    assert sent == []
    rows, due = handoff.take()
    assert (rows["n"].to_pylist(), due) == ([1, 2], 1.0)
    handoff.pass_through(row(3), 3.0, lambda *given: sent.append(given))
    assert sent == [], "the taker is still sending"
    assert handoff.take()[0]["n"].to_pylist() == [3]


def test_take_timeout_keeps_reading_thread_from_sending(sent):
    handoff = ReadAhead()
    assert handoff.take(timeout=0.01) == (None, 0.0)
    handoff.pass_through(row(1), 1.0, lambda *given: sent.append(given))
    assert sent == [], "the taker is not done"
    assert handoff.take(timeout=0.01)[0]["n"].to_pylist() == [1]
    assert handoff.take(timeout=0.01) == (None, 0.0)
    handoff.close()
    assert handoff.take(timeout=0.01) is None


def test_taking_thread_ends_after_reading_thread_has_sent():
    handoff = ReadAhead()
    begun, go_on, order = threading.Event(), threading.Event(), []

    def send(rows, due):
        begun.set()
        assert go_on.wait(10)
        order.append("sent")

    reader = threading.Thread(target=handoff.pass_through, args=(row(1), 0.0, send))
    taker = threading.Thread(target=lambda: order.append(handoff.take()))
    reader.start()
    assert begun.wait(10)
    handoff.close()
    taker.start()
    go_on.set()
    for thread in (reader, taker):
        thread.join(10)
    assert order == ["sent", None]


def test_send_error_of_reading_thread_does_not_block_taking_thread():
    handoff = ReadAhead()

    def fail(rows, due):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        handoff.pass_through(row(1), 0.0, fail)
    handoff.put(row(2), 0.0)
    assert handoff.take()[0]["n"].to_pylist() == [2]


def test_batches_sent_by_either_thread_are_neither_lost_nor_reordered(sent):
    handoff, chosen = ReadAhead(), random.Random(4)

    def send(rows, due):
        sent.extend(rows["n"].to_pylist())

    def take_all():
        while (taken := handoff.take()) is not None:
            send(*taken)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        taker = threading.Thread(target=take_all)
        taker.start()
        for number in range(5_000):
            if chosen.random() < 0.5:
                handoff.pass_through(row(number), 0.0, send)
            else:
                handoff.put(row(number), 0.0)
        handoff.close()
        taker.join(30)
    finally:
        sys.setswitchinterval(before)
    assert sent == list(range(5_000))

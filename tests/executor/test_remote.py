"""The part of an executor on a remote node."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor.remote import RemotePart
from dask_elastic.meters import InlineCost
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId


@pytest.mark.parametrize("slow", ["drop", "install"])
def test_messages_are_received_while_state_is_installed_or_dropped(slow, monkeypatch):
    part = RemotePart(ExecutorId("per_key", 0), KeySpace(1, 4), threading.Lock)
    part.receive(m.StartTask(0, (0, 1)))
    begun, finish = threading.Event(), threading.Event()

    def wait(*_):
        begun.set()
        finish.wait(100)

    monkeypatch.setattr(part.store, "drop", lambda *_: None)
    monkeypatch.setattr(part.store, slow, wait)
    control = {"drop": m.Label(0, 1, stays=False), "install": m.Install(0, 2, "state")}[slow]
    moving = threading.Thread(target=lambda: (part.control(control), part.settle()), daemon=True)
    moving.start()
    assert begun.wait(100)
    receiving = threading.Thread(target=part.receive, args=(m.FlushRequest(0, 1),), daemon=True)
    receiving.start()
    receiving.join(100)
    received = not receiving.is_alive()
    finish.set()
    moving.join(100)
    assert received


def a_part(**given):
    part = RemotePart(ExecutorId("per_key", 0), KeySpace(1, 4), **given)
    part.receive(m.StartTask(0, (0, 1)))
    return part


def a_sub_batch(silent):
    return m.SubBatch(0, 0, Batch(pa.record_batch({"key": [1]}), np.array([1], dtype=np.uint64), 0.0), silent)


def test_batches_are_measured_by_one_task_at_a_time(monkeypatch):
    held = []
    part = a_part(make_lock=threading.Lock)
    monkeypatch.setattr(InlineCost, "add", lambda *_: held.append(part.lock.locked()))
    part.processed(a_sub_batch(False), [], 0.1)
    assert held == [True]


@pytest.mark.parametrize("silent", [False, True])
def test_outputs_of_silent_sub_batch_are_not_sent(silent):
    part = a_part()
    outputs = [Delivery(ExecutorId("out", 0), a_sub_batch(False).batch)]
    sent = part.processed(a_sub_batch(silent), outputs, 0.1)
    assert [type(message) for message in sent] == ([m.Done] if silent else [m.Outputs, m.Done])


def test_label_returns_state_and_its_number_in_one_message():
    part = a_part()
    part.processed(a_sub_batch(False), [], 0.1)
    assert part.control(m.Label(0, 1, stays=False)) == [m.LabelReturned(0, 1, 0, None)]


def test_closed_part_sends_nothing():
    part = a_part(incarnation=2)
    assert part.incarnation == 2
    part.receive(m.FlushRequest(0, 1))
    part.close()
    assert part.take(0) is None
    assert part.processed(a_sub_batch(False), [], 0.1) == part.control(m.FlushRequest(0, 1)) == []
    assert not part.receive(a_sub_batch(False))
    assert not part.receive(m.StartTask(1, (2,)))
    assert part.tasks == {}


def test_part_refuses_stale_and_duplicate_messages():
    part = a_part(incarnation=2)
    assert part.admit(m.Stamp(2, 0))
    assert not part.admit(m.Stamp(2, 0))
    assert not part.admit(m.Stamp(1, 5))
    assert part.refused == 2
    assert part.stamp() == m.Stamp(2, 0)


def test_periodic_flush_is_requested_only_of_tasks_that_have_processed_something():
    part = a_part()
    part.receive(m.StartTask(1, (2,)))
    assert part.flush_due() == []
    part.processed(a_sub_batch(False), [], 0.1)
    [request] = part.flush_due()
    assert (request.task, request.shard) == (0, m.ALL_SHARDS)
    [flush] = part.control(request)
    assert flush.through == 0
    assert part.flush_due() == []


def test_flush_of_one_shard_does_not_replace_the_periodic_flush():
    part = a_part()
    part.processed(a_sub_batch(False), [], 0.1)
    part.control(m.FlushRequest(0, 1, 1))
    assert [request.task for request in part.flush_due()] == [0]

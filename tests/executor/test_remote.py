"""The part of an executor on a remote node."""

from __future__ import annotations

import threading

import pytest

from dask_elastic.executor.remote import RemotePart
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.identity import ExecutorId


@pytest.mark.parametrize("slow", ["drop", "install"])
def test_messages_are_received_while_state_comes_or_goes(slow, monkeypatch):
    part = RemotePart(ExecutorId("per_key", 0), KeySpace(1, 4), threading.Lock)
    part.receive(m.StartTask(0, (0, 1)))
    begun, go_on = threading.Event(), threading.Event()

    def wait(*_):
        begun.set()
        go_on.wait(10)

    monkeypatch.setattr(part.store, "drop", lambda *_: None)
    monkeypatch.setattr(part.store, slow, wait)
    control = {"drop": m.Label(0, 1, stays=False), "install": m.Install(0, 2, "state")}[slow]
    moving = threading.Thread(target=lambda: (part.control(control), part.settle()), daemon=True)
    moving.start()
    assert begun.wait(10)
    receiving = threading.Thread(target=part.receive, args=(m.FlushRequest(0, 1),), daemon=True)
    receiving.start()
    receiving.join(5)
    received = not receiving.is_alive()
    go_on.set()
    moving.join(10)
    assert received

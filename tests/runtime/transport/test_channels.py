from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.transport import channels as module
from dask_elastic.runtime.transport import peer as peer_module
from dask_elastic.runtime.transport.channels import Channels
from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.vocab.errors import NodeLost, ProtocolError

HERE = SimpleNamespace(
    contact_address="tcp://here:1",
    address="tcp://here:1",
    loop=SimpleNamespace(asyncio_loop=None),
    security=SimpleNamespace(get_connection_args=lambda role: {}),
)


class Way:
    """A peer that only records whether it is open."""

    made: ClassVar[list[Way]] = []

    def __init__(self, worker, address, on_broken, limit, incarnation):
        self.address = address
        self.incarnation = incarnation
        self.open = True
        self.made.append(self)

    async def connect(self):
        """Yield to the event loop once."""
        await asyncio.sleep(0)

    def close(self):
        """Record the call."""
        self.open = False

    def send_beat(self):
        """Do nothing."""


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(module, "Peer", Way)
    monkeypatch.setattr(Way, "made", [])
    return Way.made


def channels(lost):
    return Channels(HERE, WorkerOptions(), lambda *_: None, lambda address, _: lost.append(address))


def test_channel_given_up_just_before_close_is_closed(made):
    async def scenario():
        lost = []
        peers = channels(lost)
        await peers.connect("tcp://there:1")
        peers.give_up("tcp://there:1", "it does not answer")
        peers.close()
        assert lost == ["tcp://there:1"]

    asyncio.run(scenario())
    assert [way.open for way in made] == [False]


def test_channel_connecting_during_close_is_closed(made):
    async def scenario():
        peers = channels([])
        dialling = asyncio.ensure_future(peers.connect("tcp://there:1"))
        while not made:
            await asyncio.sleep(0)
        peers.close()
        with pytest.raises(NodeLost, match="has closed its channels"):
            await dialling

    asyncio.run(scenario())
    assert [way.open for way in made] == [False]


def locks():
    gc.collect()
    return sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())


def test_channels_keep_nothing_of_nodes_that_were_replaced(made):
    async def scenario():
        peers = channels([])
        before = locks()
        for number in range(20):
            await peers.connect(f"tcp://there:{number}")
            peers.give_up(f"tcp://there:{number}", "its worker was replaced")
        assert locks() == before
        await asyncio.gather(*(peers.connect("tcp://there:1") for _ in range(2)))
        peers.close()

    asyncio.run(scenario())
    incarnations = [way.incarnation for way in made if way.address == "tcp://there:1"]
    assert len(incarnations) == 2
    assert incarnations == sorted(set(incarnations))


async def nothing(count):
    """Never answer."""
    await asyncio.Event().wait()


async def other_protocol(count):
    """Answer with bytes that are not the protocol's."""
    return b"?" * count


async def breaks(count):
    """Raise as a broken connection does."""
    raise OSError("broken")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (nothing, NodeLost, "tcp://there:1 did not accept a connection within 0.01 s"),
        (other_protocol, ProtocolError, "tcp://there:1 does not answer as a worker with dask_elastic does"),
        (breaks, NodeLost, r"tcp://there:1 did not accept a connection: OSError\('broken'\)"),
    ],
)
def test_unaccepted_connection_is_aborted_and_error_names_address(answer, error, message, monkeypatch):
    class Comm:
        """A plain connection whose peer answers as parametrised."""

        aborted = False
        stream = SimpleNamespace(read_bytes=answer)

        async def write(self, words):
            """Do nothing."""

        def abort(self):
            """Record the call."""
            self.aborted = True

    async def dialled(address, **_):
        return comm

    comm = Comm()
    monkeypatch.setattr(peer_module, "connect", dialled)
    monkeypatch.setattr(peer_module, "is_plain", lambda comm: True)
    # On a busy machine, an answer may take long as well.
    monkeypatch.setattr(peer_module, "READY_SECONDS", 0.01 if answer is nothing else 100.0)
    with pytest.raises(error, match=message):
        asyncio.run(Peer(HERE, "tcp://there:1", lambda *_: None).connect())
    assert comm.aborted


def test_error_of_one_heartbeat_ends_neither_those_to_others_nor_the_next_ones(made, monkeypatch, caplog):
    async def scenario():
        beats, enough = [], asyncio.Event()
        loop = asyncio.get_running_loop()

        def send_beat(way):
            beats.append(way.address)
            if beats.count("tcp://there:2") == 3:
                loop.call_soon_threadsafe(enough.set)
            if way.address == "tcp://there:1":
                raise MemoryError("no memory for a heartbeat")

        monkeypatch.setattr(Way, "send_beat", send_beat)
        options = replace(WorkerOptions(), heartbeat_interval=0.001)
        peers = Channels(HERE, options, lambda *_: None, lambda *_: None)
        await peers.connect("tcp://there:1")
        await peers.connect("tcp://there:2")
        await asyncio.wait_for(enough.wait(), 60.0)
        peers.close()
        assert beats.count("tcp://there:1") >= 2

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["a heartbeat to tcp://there:1"]


def test_heartbeats_end_with_the_event_loop(made, monkeypatch):
    def send_beat(way):
        raise RuntimeError("Event loop is closed")

    async def scenario():
        peers = Channels(HERE, replace(WorkerOptions(), heartbeat_interval=0.001), lambda *_: None, lambda *_: None)
        await peers.connect("tcp://there:1")
        return {thread for thread in threading.enumerate() if thread.name == "elastic-beats"}

    monkeypatch.setattr(Way, "send_beat", send_beat)
    before = {thread for thread in threading.enumerate() if thread.name == "elastic-beats"}
    [thread] = asyncio.run(scenario()) - before
    thread.join(60.0)
    assert not thread.is_alive()

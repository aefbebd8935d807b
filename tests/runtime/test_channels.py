from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dask_elastic.runtime import channels as module
from dask_elastic.runtime.channels import Channels
from dask_elastic.runtime.node_options import NodeOptions
from dask_elastic.vocab.errors import NodeLost

HERE = SimpleNamespace(contact_address="tcp://here:1", address="tcp://here:1")


class Way:
    """A peer that is made and closed, and does nothing."""

    made: ClassVar[list[Way]] = []

    def __init__(self, worker, address, *_):
        self.address = address
        self.open = True
        self.made.append(self)

    async def connect(self):
        """Take a moment."""
        await asyncio.sleep(0)

    def close(self):
        """Note it."""
        self.open = False

    def send_beat(self):
        """Nothing."""


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(module, "Peer", Way)
    monkeypatch.setattr(Way, "made", [])
    return Way.made


def channels(lost):
    return Channels(HERE, NodeOptions(), lambda *_: None, lambda address, _: lost.append(address))


def test_a_way_that_is_given_up_just_before_the_end_is_closed(made):
    async def scenario():
        lost = []
        ways = channels(lost)
        await ways.connect("tcp://there:1")
        ways.give_up("tcp://there:1", "it is gone")
        ways.close()
        assert lost == ["tcp://there:1"]

    asyncio.run(scenario())
    assert [way.open for way in made] == [False]


def test_a_way_that_is_made_while_all_are_closed_is_closed_too(made):
    async def scenario():
        ways = channels([])
        dialling = asyncio.ensure_future(ways.connect("tcp://there:1"))
        while not made:
            await asyncio.sleep(0)
        ways.close()
        with pytest.raises(NodeLost, match="has closed its channels"):
            await dialling

    asyncio.run(scenario())
    assert [way.open for way in made] == [False]

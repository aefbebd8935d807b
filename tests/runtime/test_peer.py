"""What a connection to another worker puts on the wire when several threads send."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.runtime.transport.peer import Peer
from dask_elastic.runtime.transport.wire import messages_of, unpack
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp

HERE = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=None))
GENERATION, TARGET, ORIGIN = ("job", 1), ExecutorId("c", 0), ExecutorId("s", 0)


class Wire:
    """A lane that keeps the packets of a peer."""

    def __init__(self, peer):
        self.packets = []
        self._next_packet = peer._queue.next_packet

    def transmit(self):
        """Take every packet."""
        while (packet := self._next_packet()) is not None:
            self.packets.append(packet)


@pytest.fixture
def eager_switching():
    """Have threads take turns as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_switching")
def test_schema_is_sent_once_and_before_every_batch_that_needs_it():
    peer = Peer(HERE, "tcp://there:1", lambda *_: None, incarnation=3)
    peer._lane = wire = Wire(peer)
    batches = [
        Batch(pa.record_batch({f"column_{number}": [number]}), np.array([number], np.uint64), 0.0)
        for number in range(40)
    ]

    def run():
        for batch in batches:
            peer.send_batch(GENERATION, TARGET, ORIGIN, batch, 8)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    schemas, sent = [], []
    for expected, packet in enumerate(wire.packets):
        headers, stamp = unpack(packet)
        assert stamp == Stamp(3, expected)
        for header, parts in messages_of(packet, headers):
            if header[0] == "schema":
                schemas.append(pa.ipc.read_schema(pa.py_buffer(parts[0])))
            else:
                schema = schemas[header[-1][0]]
                rows = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(parts[0])), schema)
                sent.append(rows)
    assert len(schemas) == len(batches)
    assert all(sum(rows.equals(batch.rows) for rows in sent) == 4 for batch in batches)

"""What a connection to another worker puts on the wire when several threads send, and how it is read."""

from __future__ import annotations

import itertools
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.runtime.config.worker_options import MAX_FRAME
from dask_elastic.runtime.transport.deferred import DEFERRED, DEFERRED_SECONDS, Deferred
from dask_elastic.runtime.transport.lanes import SocketReader
from dask_elastic.runtime.transport.packet import Packet
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


class Recorder:
    """A connection that records when deferred messages are written."""

    def __init__(self, written):
        self.written = written

    def write_deferred(self):
        """Record the call."""
        self.written.append("end")


@pytest.fixture
def peer_and_wire(monkeypatch):
    # A thread that the system suspends within a block must not count as one that keeps messages waiting.
    monkeypatch.setattr(DEFERRED, "_clock", lambda: 0.0)
    peer = Peer(HERE, "tcp://there:1", lambda *_: None)
    peer._lane = wire = Wire(peer)
    return peer, wire


def credit(peer, nbytes):
    """Send a message that its bytes tell from others."""
    peer.send_credit(GENERATION, TARGET, ORIGIN, nbytes, False)


def credits(wire):
    """Return the bytes of the messages on the wire, packet by packet."""
    return [[header[6] for header, _ in messages_of(packet, unpack(packet)[0])] for packet in wire.packets]


def test_messages_of_a_block_leave_as_one_packet_before_the_runs_and_theirs_after_them(peer_and_wire):
    peer, wire = peer_and_wire
    seen = []

    def run():
        seen.append(len(wire.packets))
        credit(peer, 3)
        DEFERRED.run(lambda: seen.append(len(wire.packets)))

    with DEFERRED:
        credit(peer, 1)
        with DEFERRED:
            assert DEFERRED.run(run)
        credit(peer, 2)
        assert (seen, wire.packets) == ([], [])
    assert credits(wire)[0] == [1, 2]
    assert seen[0] == 1, "the messages are written before the first run"
    assert [nbytes for packet in credits(wire) for nbytes in packet] == [1, 2, 3]
    assert len(seen) == 2, "what a run defers is carried out"


def test_message_of_another_thread_takes_deferred_ones_along(peer_and_wire):
    peer, wire = peer_and_wire
    with DEFERRED:
        credit(peer, 1)
        other = threading.Thread(target=credit, args=(peer, 2))
        other.start()
        other.join()
        assert credits(wire) == [[1, 2]]
    assert len(wire.packets) == 1


def test_heartbeat_writes_messages_that_wait_for_a_thread_that_does_not_continue(peer_and_wire):
    peer, wire = peer_and_wire
    with DEFERRED:
        credit(peer, 1)
        other = threading.Thread(target=peer.send_beat)
        other.start()
        other.join()
        assert credits(wire) == [[1]]


def test_messages_wait_for_later_ones_no_longer_than_the_bound():
    seconds = iter([0.0, 0.9 * DEFERRED_SECONDS, 1.1 * DEFERRED_SECONDS, 1.2 * DEFERRED_SECONDS])
    deferred, written = Deferred(lambda: next(seconds)), []
    writer = Recorder(written)
    with deferred:
        assert [deferred.write(writer) for _ in range(4)] == [True, True, False, True]
        assert written == []
    assert written == ["end"]


def test_error_in_a_block_drops_neither_messages_nor_runs(peer_and_wire):
    peer, wire = peer_and_wire
    ran = []

    def fail():
        with DEFERRED:
            credit(peer, 1)
            DEFERRED.run(lambda: ran.append(True))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (credits(wire), ran) == ([[1]], [True])
    assert not DEFERRED.run(ran.clear), "the block has ended"


class Fed:
    """A socket that has received given pieces, and whose peer has then closed the connection."""

    def __init__(self, pieces):
        self.waiting = [piece for piece in pieces if piece]

    def recv_into(self, buffer, size, flags):
        """Read at most one piece, as the kernel may; a call that waits for all of its bytes gets less at the end."""
        if not self.waiting:
            return 0
        piece = self.waiting.pop(0)
        taken = min(len(piece), len(buffer))
        buffer[:taken] = piece[:taken]
        if taken < len(piece):
            self.waiting.insert(0, piece[taken:])
        return taken


@given(
    st.lists(st.lists(st.binary(max_size=40) | st.integers(60_000, 70_000).map(bytes), max_size=3), max_size=6),
    st.lists(st.integers(1, 400), max_size=40),
    st.integers(0, 20),
)
def test_packets_are_read_as_they_were_written_however_the_stream_is_cut(written, sizes, lost):
    stream = b"".join(bytes(frame) for buffers in written for frame in Packet(buffers).to_frames())
    stream = stream[: len(stream) - lost] if lost else stream
    cuts = [0, *itertools.accumulate(sizes), len(stream)]
    reader = SocketReader.__new__(SocketReader)
    reader._limit, reader._socket = MAX_FRAME, Fed([stream[a:b] for a, b in itertools.pairwise(cuts)])
    found = [[bytes(buffer) for buffer in packet.buffers] for packets in reader._read() for packet in packets]
    # A packet has at least the bytes of its prefix, so the lost ones belong to the last two.
    assert found == written[: len(found)]
    assert len(found) == len(written) if not lost else len(found) >= len(written) - 2

"""What several threads transmit on one socket arrives complete and in order."""

from __future__ import annotations

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.transport.lanes import AT_ONCE_BYTES, PREFIX, SocketLane
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.packet_queue import PacketQueue
from dask_elastic.runtime.transport.wire import unpack
from dask_elastic.vocab.messages import Stamp

DEADLINE = 60.0


class Ends:
    """Both ends of a connection: a comm for the lane, and a socket to read from."""

    def __init__(self):
        mine, self.read = socket.socketpair()
        self.read.settimeout(DEADLINE)
        stream = SimpleNamespace(socket=mine, io_loop=SimpleNamespace(remove_handler=lambda _: None))
        self.comm = SimpleNamespace(stream=stream, abort=mine.close)

    def packet(self):
        """Read one packet."""
        count, nbytes = Packet.body_bytes(self._read(PREFIX.size))
        return Packet.from_body(count, memoryview(self._read(nbytes)))

    def _read(self, nbytes):
        received = bytearray()
        while len(received) < nbytes:
            received += self.read.recv(nbytes - len(received))
        return bytes(received)


@pytest.fixture
def lane_of():
    """Make lanes on connections of their own, closed at the end."""
    ends, lanes, errors = [], [], []

    def make(next_packet):
        ends.append(Ends())
        lanes.append(SocketLane(ends[-1].comm, next_packet, errors.append))
        return lanes[-1], ends[-1]

    yield make
    for lane, end in zip(lanes, ends, strict=True):
        lane.close()
        end.read.close()
    assert not errors


def test_thread_that_ends_drops_nothing_that_the_next_one_left_to_the_writer(lane_of):
    large = Packet([b"x" * (AT_ONCE_BYTES + 1)])
    turns = iter(["the end of the first thread", "large", "the end of the writer"])

    def next_packet():
        turn = next(turns)
        if turn == "the end of the first thread":
            # From here on, another thread may transmit, before this one goes on.
            lane.transmit()
        return large if turn == "large" else None

    lane, end = lane_of(next_packet)
    usual = sys.getswitchinterval()
    # The writer begins only when this thread waits.
    sys.setswitchinterval(DEADLINE)
    try:
        lane.transmit()
    finally:
        sys.setswitchinterval(usual)
    assert bytes(end.packet().buffers[0]) == large.buffers[0]


@pytest.mark.parametrize("nbytes", [10, AT_ONCE_BYTES // 3, 2 * AT_ONCE_BYTES])
def test_packets_of_many_threads_arrive_in_the_order_of_their_stamps(lane_of, nbytes):
    threads, each = 4, 2_000 if nbytes < 1_000 else 200
    stamps = iter(range(threads * each))
    # One message a packet.
    queue = PacketQueue(1, lambda: Stamp(0, next(stamps)))
    lane, end = lane_of(queue.next_packet)
    body = b"x" * nbytes

    def send():
        for _ in range(each):
            if queue.put([(["beat"], [body])]):
                lane.transmit()

    senders = [threading.Thread(target=send) for _ in range(threads)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for sender in senders:
            sender.start()
        for expected in range(threads * each):
            packet = end.packet()
            assert unpack(packet)[1] == Stamp(0, expected)
            assert len(packet.buffers[1]) == nbytes
    finally:
        sys.setswitchinterval(usual)
        for sender in senders:
            sender.join()


@pytest.mark.parametrize("who", ["caller", "writer"])
def test_any_error_of_a_packet_breaks_the_connection(who):
    """Without this, later messages would wait for ever behind a thread that seems to transmit."""
    large = Packet([b"x" * (AT_ONCE_BYTES + 1)])
    packets = iter([large] if who == "writer" else [])
    broken, errors = threading.Event(), []

    def next_packet():
        if (packet := next(packets, None)) is not None:
            return packet
        raise MemoryError("no memory for a packet")

    def note(error):
        errors.append(error)
        broken.set()

    end = Ends()
    lane = SocketLane(end.comm, next_packet, note)
    try:
        lane.transmit()
        if who == "writer":
            end.packet()
        assert broken.wait(DEADLINE)
    finally:
        lane.close()
        end.read.close()
    assert [type(error) for error in errors] == [MemoryError]

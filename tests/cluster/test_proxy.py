"""The tests' proxy network delivers bytes once and in order, and nothing while a pair is cut."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from proxy import Network


@pytest.fixture
def network():
    with closing(Network()) as made:
        yield made


@pytest.fixture
def connect(network):
    """Return a function that makes a connection from `a` to `b`; it gives both ends."""
    opened = []

    def made():
        server = socket.create_server(("127.0.0.1", 0))
        way = network.way("a", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        dialled = socket.create_connection(("127.0.0.1", int(way.rpartition(":")[2])))
        taken, _ = server.accept()
        server.close()
        for one in (dialled, taken):
            one.settimeout(10)
            opened.append(one)
        return dialled, taken, way

    yield made
    for one in opened:
        one.close()


def silent(one):
    one.setblocking(False)
    try:
        with pytest.raises(BlockingIOError):
            one.recv(1)
    finally:
        one.settimeout(10)


def test_bytes_sent_before_reader_connects_arrive_in_order(connect):
    dialled, taken, _ = connect()
    sent = bytes(range(256)) * 80_000
    received = bytearray()

    def read():
        while chunk := taken.recv(2**20):
            received.extend(chunk)

    writing = threading.Thread(target=dialled.sendall, args=(sent,), daemon=True)
    writing.start()
    other_way, answered, _ = connect()
    other_way.sendall(b"still here")
    assert answered.recv(100) == b"still here"
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    writing.join(100)
    dialled.close()
    reading.join(100)
    assert received == sent


def test_cut_pair_receives_no_bytes_until_healed(connect, network):
    dialled, taken, way = connect()
    pair = "a", f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    network.cut(*pair)
    dialled.sendall(b"one")
    taken.sendall(b"two")
    late = socket.create_connection(("127.0.0.1", int(way.rpartition(":")[2])))
    network.way("a", "tcp://127.0.0.1:1")
    silent(taken)
    silent(dialled)
    network.heal(*pair)
    assert taken.recv(10) == b"one"
    assert dialled.recv(10) == b"two"
    # Its target listens no more by now.
    assert late.recv(10) == b""
    late.close()


def rest(one):
    """Read until the other end is closed, as it has to be; returns the nothing that then comes."""
    try:
        return one.recv(100) and rest(one)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("first", [0, 1])
def test_ends_closed_while_cut_are_closed_after_heal(connect, network, first):
    """Over and over: it was a race between the one who heals and the network's own thread."""
    for _ in range(50):
        *ends, _ = connect()
        pair = "a", f"tcp://127.0.0.1:{ends[1].getsockname()[1]}"
        network.cut(*pair)
        ends[0].sendall(b"on its way")
        ends[first].close()
        network.heal(*pair)
        assert rest(ends[1 - first]) == b""
        ends[1 - first].close()

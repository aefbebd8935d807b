"""Threads that read a connection: they are relieved while they are blocked, and all is handled once and in order."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.transport import reading
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.lanes import READY, CommReader, SocketReader
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.reading import Reading, ReadingWatch
from dask_elastic.vocab.errors import ProtocolError

SECONDS = 20.0


def until(holds, otherwise):
    """Wait for a condition."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.001)


class Block:
    """A run that blocks until it is let go."""

    def __init__(self):
        self.began, self.resume, self.thread = threading.Event(), threading.Event(), None

    def __call__(self):
        self.thread = threading.current_thread()
        self.began.set()
        assert self.resume.wait(SECONDS)


class Connection:
    """Items that are read from a queue: a function is run last, all else is handled."""

    def __init__(self, watch=None, clock=time.monotonic):
        self.items, self.handled, self.ended = SimpleQueue(), [], threading.Event()
        self.reading = Reading(self.read, watch, clock)
        self.reading.start()

    def read(self, turn):
        if not self.reading.begins(turn):
            return
        while (items := self.items.get()) is not None:
            with DEFERRED:
                for item in items:
                    if not callable(item):
                        self.handled.append((item, threading.current_thread()))
                    elif not DEFERRED.run_last(item):
                        item()
            if not self.reading.goes_on(turn):
                return
        self.reading.end()
        self.ended.set()

    def put(self, *items):
        self.items.put(items)

    @property
    def numbers(self):
        return [number for number, _ in self.handled]


class Unwatched:
    """A watch that does nothing by itself."""

    def __init__(self):
        self.noted = 0

    def add(self, reading):
        """Nothing is watched."""

    def remove(self, reading):
        """Nothing is watched."""

    def note(self):
        """Count the calls."""
        self.noted += 1


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def connection(now):
    made = Connection(Unwatched(), lambda: now[0])
    yield made
    made.items.put(None)
    assert made.ended.wait(SECONDS)


def test_another_thread_reads_on_while_one_is_blocked(connection, now):
    first, second = Block(), Block()
    connection.put(0, first)
    assert first.began.wait(SECONDS)
    connection.put(1)
    connection.put(2, second)
    now[0] = 0.005
    assert not connection.reading.relieve()
    assert connection.numbers == [0]
    now[0] = 1.0
    assert connection.reading.relieve()
    assert second.began.wait(SECONDS)
    assert not connection.reading.relieve()
    now[0] = 2.0
    assert connection.reading.relieve()
    connection.put(3)
    until(lambda: connection.numbers == [0, 1, 2, 3], "the third thread does not read")
    for block in (first, second):
        block.resume.set()
        block.thread.join(SECONDS)
        assert not block.thread.is_alive()
    connection.put(4)
    until(lambda: connection.numbers == [0, 1, 2, 3, 4], "the third thread does not go on")
    threads = [thread for _, thread in connection.handled]
    assert threads[0] is first.thread
    assert threads[1] is threads[2] is second.thread
    assert threads[3] is threads[4]
    assert len({*threads}) == 3


def test_thread_that_comes_back_is_not_relieved(connection, now):
    for number in range(3):
        block = Block()
        connection.put(number, block)
        assert block.began.wait(SECONDS)
        block.resume.set()
        connection.put("next")
        until(lambda: connection.numbers[-1] == "next", "the thread does not go on")
        now[0] += 1.0
        assert not connection.reading.relieve()
    assert len({thread for _, thread in connection.handled}) == 1
    assert connection.reading._watch.noted == 3


def test_thread_is_not_relieved_while_it_handles_what_it_has_read(now):
    handles, connection = Block(), Connection(None, lambda: now[0])
    # Without a watch, the connection carries it out at once.
    connection.put(0, handles)
    assert handles.began.wait(SECONDS)
    now[0] = 100.0
    assert not connection.reading.relieve()
    handles.resume.set()
    connection.put(1)
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)
    assert connection.numbers == [0, 1]
    assert {thread for _, thread in connection.handled} == {handles.thread}


def test_runs_behind_a_blocked_one_and_messages_are_taken_over(connection, now):
    block, ran, written, deferred = Block(), [], [], []

    class Writer:
        def write_deferred(self):
            written.append(threading.current_thread())

    def write():
        DEFERRED.write(Writer())
        block()
        deferred.append(DEFERRED.run_last(write))

    connection.put(write, lambda: ran.append(threading.current_thread()), 0)
    assert block.began.wait(SECONDS)
    assert (ran, written) == ([], [])
    now[0] = 1.0
    assert connection.reading.relieve()
    connection.put(1)
    until(lambda: connection.numbers == [0, 1], "no other thread reads")
    (by,) = ran
    assert by is not block.thread
    assert written == [by]
    block.resume.set()
    block.thread.join(SECONDS)
    assert len(ran) == 1
    # That thread no longer reads, so it is not relieved again.
    assert deferred == [False]


def test_run_that_was_taken_over_and_blocks_is_relieved_too(connection, now):
    blocks = [Block() for _ in range(5)]
    connection.put(*blocks, 0)
    for block in blocks:
        assert block.began.wait(SECONDS)
        now[0] += 1.0
        assert connection.reading.relieve()
    connection.put(1)
    until(lambda: connection.numbers == [0, 1], "no other thread reads")
    assert len({block.thread for block in blocks}) == len(blocks)
    for block in blocks:
        block.resume.set()
        block.thread.join(SECONDS)
        assert not block.thread.is_alive()


def test_thread_that_comes_back_at_the_last_moment_is_not_relieved(now):
    block = Block()

    def clock():
        if now[0] and not block.resume.is_set():
            block.resume.set()
            connection.put(1)
            until(lambda: connection.numbers == [0, 1], "the thread does not go on")
        return now[0]

    connection = Connection(Unwatched(), clock)
    connection.put(0, block)
    assert block.began.wait(SECONDS)
    now[0] = 1.0
    assert not connection.reading.relieve()
    connection.put(2)
    until(lambda: connection.numbers == [0, 1, 2], "the thread does not go on")
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)
    assert {thread for _, thread in connection.handled} == {block.thread}


def test_thread_goes_on_if_no_other_can_be_started(connection, now, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    block = Block()
    connection.put(0, block)
    assert block.began.wait(SECONDS)
    now[0] = 1.0
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            connection.reading.relieve()
    block.resume.set()
    connection.put(1)
    until(lambda: connection.numbers == [0, 1], "the thread does not go on")
    assert {thread for _, thread in connection.handled} == {block.thread}


def test_connection_whose_first_thread_cannot_be_started_is_not_watched(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    watch = ReadingWatch()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        Reading(lambda turn: None, watch).start()
    assert watch._readings == set()


def test_thread_goes_on_if_the_watch_cannot_be_started_and_is_relieved_once_it_can(monkeypatch, caplog):
    starts = threading.Thread.start

    def start(self):
        if self.name == "elastic-reader-watch":
            raise RuntimeError("can't start new thread")
        starts(self)

    watch, block, ran = ReadingWatch(), Block(), threading.Event()
    connection = Connection(watch)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        connection.put(0, ran.set)
        assert ran.wait(SECONDS)
    assert "can't start new thread" in caplog.text
    connection.put(1, block)
    connection.put(2)
    until(lambda: connection.numbers == [0, 1, 2], "it is not relieved")
    block.resume.set()
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)


def test_watch_does_not_sleep_while_a_blocked_thread_cannot_be_relieved(monkeypatch):
    monkeypatch.setattr(reading, "IDLE_CHECKS", 2)
    watch, block, attempts = ReadingWatch(), Block(), []
    starts = Reading._start_thread

    def start(self, turn):
        attempts.append(turn)
        if 1 < len(attempts) < 8:
            raise RuntimeError("can't start new thread")
        starts(self, turn)

    monkeypatch.setattr(Reading, "_start_thread", start)
    connection = Connection(watch)
    connection.put(block)
    connection.put(1)
    until(lambda: connection.numbers == [1], "it is not relieved")
    assert attempts == [0, *[1] * 7]
    block.resume.set()
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)


class LateNote(ReadingWatch):
    """A watch that is disturbed once when it has just seen that nothing was noted."""

    def __init__(self, disturb):
        self._disturb = disturb
        super().__init__()

    @property
    def _noted(self):
        found, disturb = self._found, self._disturb
        if disturb is not None and not found and not self._sleeps:
            self._disturb = None
            disturb()
        return found

    @_noted.setter
    def _noted(self, noted):
        self._found = noted


def test_what_is_noted_while_the_watch_looks_keeps_it_awake(monkeypatch):
    monkeypatch.setattr(reading, "IDLE_CHECKS", 1)
    block = Block()

    def disturb():
        connection.put(1, block)
        assert block.began.wait(SECONDS)

    connection = Connection(LateNote(disturb))
    connection.put(0, lambda: None)
    assert block.began.wait(SECONDS)
    connection.put(2)
    until(lambda: connection.numbers == [0, 1, 2], "it is not relieved")
    block.resume.set()
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)


def test_many_notes_wake_the_watch_once():
    watch = ReadingWatch()
    watch._starts, watch._sleeps = False, True
    for _ in range(3):
        watch.note()
    assert watch._bell._rings.qsize() == 1


def test_watch_relieves_blocked_threads_again_after_it_has_slept(monkeypatch):
    monkeypatch.setattr(reading, "IDLE_CHECKS", 2)
    watch = ReadingWatch()
    connections = [Connection(watch) for _ in range(3)]
    for number in range(3):
        until(lambda: watch._starts or watch._sleeps, "the watch does not sleep")
        blocks = [Block() for _ in connections]
        for connection, block in zip(connections, blocks, strict=True):
            connection.put(block)
            connection.put(number)
        for connection, block in zip(connections, blocks, strict=True):
            until(lambda wanted=[*range(number + 1)], read=connection: read.numbers == wanted, "it is not relieved")
            block.resume.set()
    for connection in connections:
        connection.items.put(None)
        assert connection.ended.wait(SECONDS)
    assert watch._readings == set()


@pytest.mark.parametrize("idle_checks", [2, 1_000_000])
def test_watch_ends_with_the_last_connection_and_starts_with_the_next_one(monkeypatch, idle_checks):
    monkeypatch.setattr(reading, "IDLE_CHECKS", idle_checks)
    watch = ReadingWatch()

    def threads():
        return {thread for thread in threading.enumerate() if thread.name == "elastic-reader-watch"} - others

    others = {thread for thread in threading.enumerate() if thread.name == "elastic-reader-watch"}
    for _ in range(3):
        connection, block = Connection(watch), Block()
        connection.put(block)
        connection.put(1)
        until(lambda read=connection: read.numbers == [1], "it is not relieved")
        block.resume.set()
        (thread,) = threads()
        if idle_checks == 2:
            until(lambda: watch._sleeps, "the watch does not sleep")
        connection.items.put(None)
        assert connection.ended.wait(SECONDS)
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_watch_notes_what_it_cannot_start_and_goes_on(monkeypatch, caplog):
    watch, block = ReadingWatch(), Block()
    refuses = threading.Event()
    starts = Reading._start_thread

    def start(self, turn):
        if turn and not refuses.is_set():
            refuses.set()
            raise RuntimeError("can't start new thread")
        starts(self, turn)

    monkeypatch.setattr(Reading, "_start_thread", start)
    connection = Connection(watch)
    connection.put(block)
    connection.put(1)
    until(lambda: connection.numbers == [1], "it is not relieved")
    assert refuses.is_set()
    assert "can't start new thread" in caplog.text
    block.resume.set()
    connection.items.put(None)
    assert connection.ended.wait(SECONDS)


class Sockets:
    """A connection of sockets, as its reader and its peer see it."""

    def __init__(self):
        mine, self.peer = socket.socketpair()
        stream = SimpleNamespace(socket=mine, io_loop=SimpleNamespace(remove_handler=lambda _: None))
        self.comm = SimpleNamespace(stream=stream, abort=mine.close)

    def send(self, packet):
        self.peer.sendall(b"".join(map(bytes, packet.to_frames())))

    def end(self):
        self.peer.shutdown(socket.SHUT_WR)


class Comms:
    """A comm that the event loop reads, as its reader and its peer see it."""

    def __init__(self):
        self.loop, self.arrived = asyncio.get_running_loop(), asyncio.Queue()
        self.comm = SimpleNamespace(read=self._read, abort=self.end)

    async def _read(self):
        message = await self.arrived.get()
        if message is None:
            raise EOFError("the peer has closed the connection")
        return message

    def send(self, packet):
        self.loop.call_soon_threadsafe(self.arrived.put_nowait, packet.to_message())

    def end(self):
        self.loop.call_soon_threadsafe(self.arrived.put_nowait, None)


@pytest.mark.parametrize(("reads", "ends"), [(SocketReader, Sockets), (CommReader, Comms)])
def test_packets_are_handled_in_order_while_runs_between_them_block(reads, ends):
    async def read():
        blocks, handled, connection = [Block() for _ in range(4)], [], ends()

        def handle(packet):
            number = int(bytes(packet.buffers[0]))
            handled.append(number)
            if number % 10 == 5:
                assert DEFERRED.run_last(blocks[number // 10])

        reader = reads(connection.comm, handle, watch=watch)
        ended = asyncio.ensure_future(reader.ended())
        for number in range(40):
            connection.send(Packet([b"%d" % number]))
        await asyncio.to_thread(until, lambda: handled == [*range(40)], "what follows is not read")
        for block in blocks:
            assert await asyncio.to_thread(block.began.wait, SECONDS)
        assert len({block.thread for block in blocks}) == len(blocks)
        # The last one is not relieved, or ends as well.
        for block in blocks:
            block.resume.set()
        for block in blocks[:-1]:
            await asyncio.to_thread(block.thread.join, SECONDS)
            assert not block.thread.is_alive()
        for number in (40, 41, 42):
            connection.send(Packet([b"%d" % number]))
        await asyncio.to_thread(until, lambda: handled == [*range(43)], "what follows is not read")
        connection.end()
        error = await asyncio.wait_for(ended, SECONDS)
        reader.close()
        return error

    watch = ReadingWatch()
    assert isinstance(asyncio.run(read()), EOFError)
    assert watch._readings == set()


def test_silence_is_noticed_while_a_thread_that_was_relieved_is_blocked():
    async def read():
        block, connection = Block(), Sockets()
        reader = SocketReader(connection.comm, lambda packet: DEFERRED.run_last(block), watch=ReadingWatch())
        assert connection.peer.recv(len(READY)) == READY
        connection.send(Packet([b"0"]))
        assert await asyncio.to_thread(block.began.wait, SECONDS)
        await asyncio.to_thread(until, lambda: reader._reading._turn == 1, "it is not relieved")
        await asyncio.to_thread(until, lambda: not reader._handling, "the peer counts as heard from")
        before = reader.last_received
        await asyncio.to_thread(until, lambda: time.monotonic() > before + 0.05, "time passes")
        assert reader.last_received == before
        block.resume.set()
        connection.end()
        error = await asyncio.wait_for(reader.ended(), SECONDS)
        reader.close()
        return error

    assert isinstance(asyncio.run(read()), EOFError)


def test_failure_of_a_relieved_thread_ends_the_connection(caplog):
    async def read():
        block, connection = Block(), Sockets()

        def fail():
            block()
            raise KeyError("a run must not raise")

        reader = SocketReader(connection.comm, lambda packet: DEFERRED.run_last(fail), watch=ReadingWatch())
        connection.send(Packet([b"0"]))
        assert await asyncio.to_thread(block.began.wait, SECONDS)
        await asyncio.to_thread(until, lambda: reader._reading._turn == 1, "it is not relieved")
        block.resume.set()
        error = await asyncio.wait_for(reader.ended(), SECONDS)
        reader.close()
        return error

    assert isinstance(asyncio.run(read()), EOFError)
    assert "a run must not raise" in caplog.text


@pytest.mark.parametrize(("reads", "ends"), [(SocketReader, Sockets), (CommReader, Comms)])
def test_nothing_behind_a_packet_that_cannot_be_handled_is_handled_by_the_next_thread(reads, ends):
    async def read():
        block, connection = Block(), ends()

        def handle(packet):
            handled.append(int(bytes(packet.buffers[0])))
            DEFERRED.run_last(block)
            raise ProtocolError("a message cannot be read")

        reader = reads(connection.comm, handle, watch=Unwatched())
        connection.send(Packet([b"0"]))
        ended = asyncio.ensure_future(reader.ended())
        assert await asyncio.to_thread(block.began.wait, SECONDS)
        connection.send(Packet([b"1"]))
        await asyncio.to_thread(until, reader._reading.relieve, "it is not blocked")
        # The connection ends although the first thread is still blocked.
        error = await asyncio.wait_for(ended, SECONDS)
        block.resume.set()
        await asyncio.to_thread(block.thread.join, SECONDS)
        assert not block.thread.is_alive()
        reader.close()
        return error

    handled = []
    assert isinstance(asyncio.run(read()), ProtocolError)
    assert handled == [0]


def test_error_in_what_is_taken_over_ends_the_connection():
    class Writer:
        def write_deferred(self):
            if not block.resume.is_set():
                raise KeyError("a write must not raise")

    async def read():
        def write():
            DEFERRED.write(Writer())
            block()

        connection = Sockets()
        reader = SocketReader(connection.comm, lambda packet: DEFERRED.run_last(write), watch=Unwatched())
        connection.send(Packet([b"0"]))
        assert await asyncio.to_thread(block.began.wait, SECONDS)
        await asyncio.to_thread(until, reader._reading.relieve, "it is not blocked")
        error = await asyncio.wait_for(reader.ended(), SECONDS)
        block.resume.set()
        await asyncio.to_thread(block.thread.join, SECONDS)
        assert not block.thread.is_alive()
        reader.close()
        return error

    block = Block()
    assert isinstance(asyncio.run(read()), KeyError)


def test_silence_counts_from_when_a_thread_reads_again():
    async def read():
        connection = Sockets()

        def handle(packet):
            # As if it took long.
            reader.last_received = time.monotonic() - 1000.0
            handled.set()

        reader, handled = SocketReader(connection.comm, handle), threading.Event()
        connection.send(Packet([b"0"]))
        assert await asyncio.to_thread(handled.wait, SECONDS)
        await asyncio.to_thread(until, lambda: not reader._handling, "it does not read again")
        assert time.monotonic() - reader.last_received < 500.0
        connection.end()
        await asyncio.wait_for(reader.ended(), SECONDS)
        reader.close()

    asyncio.run(read())

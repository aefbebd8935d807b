"""A network between workers that can be cut: every worker dials every other through a proxy of its own."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from concurrent.futures import Future
from queue import SimpleQueue

CHUNK = 2**16
SECONDS = 30


class Network:
    """Forwards bytes between pairs of workers; a pair that is cut keeps its connections, and hears nothing.

    Its ways are given to the workers by `install`; each connection is dialled through the proxy for (from, to).
    Sockets and selector belong to one thread; everybody else asks it and waits for the answer.
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._listeners = []
        self._connections = set()
        self._cut = set()
        self._wishes = SimpleQueue()
        self._bell, self._rung = socket.socketpair()
        self._rung.setblocking(False)
        self._selector.register(self._rung, selectors.EVENT_READ, lambda _: self._answer())
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def way(self, source, target):
        """Return the address at which `target` can be dialled by `source`."""
        return self._ask(lambda: self._listen(frozenset({source, target}), target))

    def cut(self, one, other):
        """Let nothing through between two workers any more."""
        self._ask(lambda: self._change(self._cut.add, frozenset({one, other})))

    def heal(self, one, other):
        """Let everything through again, what waited first."""
        self._ask(lambda: self._change(self._cut.discard, frozenset({one, other})))

    def close(self):
        """End."""
        self._ask(self._end)
        self._thread.join(SECONDS)
        self._bell.close()

    def _ask(self, wish):
        answer = Future()
        self._wishes.put((wish, answer))
        self._bell.send(b"!")
        return answer.result(SECONDS)

    # the network's own thread

    def _run(self):
        while not self._ended:
            for key, events in self._selector.select():
                # What was closed since the selector saw it is not in its map any more.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
        for connection in list(self._connections):
            connection.close()
        for one in (*self._listeners, self._rung):
            one.close()
        self._selector.close()

    def _answer(self):
        self._rung.recv(CHUNK)
        while not self._wishes.empty():
            wish, answer = self._wishes.get()
            try:
                answer.set_result(wish())
            except Exception as error:  # the one who asked raises it
                answer.set_exception(error)

    def _end(self):
        self._ended = True

    def _listen(self, pair, target):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept(listener, pair, target))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def _change(self, change, pair):
        change(pair)
        for connection in list(self._connections):
            if connection.pair == pair:
                connection.watch()

    def _accept(self, listener, pair, target):
        accepted, _ = listener.accept()
        host, port = target.removeprefix("tcp://").split(":")
        try:
            onward = socket.create_connection((host, int(port)), timeout=SECONDS)
        except OSError:  # nobody is there any more
            accepted.close()
            return
        Connection(self._selector, self._connections, self._cut, pair, (accepted, onward))


class Connection:
    """Two sockets, each of which gets what the other sends; they are closed together."""

    def __init__(self, selector, connections, cut, pair, ends):
        self.pair = pair
        self._selector, self._connections, self._cut = selector, connections, cut
        self._ends = ends
        self._waiting = dict.fromkeys(ends, b"")
        self._watched = dict.fromkeys(ends, 0)
        for end in ends:
            end.setblocking(False)
        connections.add(self)
        self.watch()

    def watch(self):
        """Wait for what can be done: nothing while the pair is cut; no end is read before the other has it all."""
        for end, other in (self._ends, self._ends[::-1]):
            wanted = 0
            if self.pair not in self._cut:
                wanted |= selectors.EVENT_WRITE if self._waiting[end] else 0
                wanted |= 0 if self._waiting[other] else selectors.EVENT_READ
            self._set(end, other, wanted)

    def _set(self, end, other, wanted):
        if wanted == self._watched[end]:
            return
        if self._watched[end]:
            self._selector.unregister(end)
        if wanted:
            self._selector.register(end, wanted, lambda events: self._ready(end, other, events))
        self._watched[end] = wanted

    def _ready(self, end, other, events):
        try:
            if events & selectors.EVENT_WRITE:
                self._waiting[end] = self._waiting[end][end.send(self._waiting[end]) :]
            if events & selectors.EVENT_READ:
                received = end.recv(CHUNK)
                if not received:
                    self.close()
                    return
                self._waiting[other] = received
                with contextlib.suppress(BlockingIOError):
                    self._waiting[other] = received[other.send(received) :]
            self.watch()
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self):
        """Close both ends; what waits is dropped."""
        for end, other in (self._ends, self._ends[::-1]):
            self._set(end, other, 0)
        for end in self._ends:
            end.close()
        self._connections.discard(self)


def install(client, network):
    """Put a network between all workers of a client, for the channels that they dial from here on."""

    def dial_through(ways):
        from dask_elastic.runtime.transport import peer

        direct = peer.connect

        async def connect(address, **arguments):
            return await direct(ways.get(address, address), **arguments)

        peer.connect = connect

    workers = list(client.nthreads())
    for source in workers:
        ways = {target: network.way(source, target) for target in workers if target != source}
        client.run(dial_through, ways, workers=[source])

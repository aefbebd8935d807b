"""A network between workers that tests can partition: each pair of workers connects through its own proxy."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from concurrent.futures import Future
from queue import SimpleQueue

CHUNK = 2**16
SECONDS = 100


class Network:
    """Forwards bytes between pairs of workers; a pair that is cut keeps its connections but receives nothing.

    `install` gives its addresses to the workers; each connection goes through the proxy for (from, to).
    Sockets and selector belong to one thread; other threads send it requests and wait for the result.
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._listeners = []
        self._connections = set()
        self._cut = set()
        self._requests = SimpleQueue()
        self._bell, self._rung = socket.socketpair()
        self._rung.setblocking(False)
        self._selector.register(self._rung, selectors.EVENT_READ, lambda _: self._answer())
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def way(self, source, target):
        """Return the address at which `target` can be dialled by `source`."""
        return self._request(lambda: self._listen(frozenset({source, target}), target))

    def cut(self, one, other):
        """Stop forwarding bytes between two workers."""
        self._request(lambda: self._change(self._cut.add, frozenset({one, other})))

    def heal(self, one, other):
        """Resume forwarding, first the bytes that wait."""
        self._request(lambda: self._change(self._cut.discard, frozenset({one, other})))

    def close(self):
        """Close all connections and end the thread."""
        self._request(self._end)
        self._thread.join(SECONDS)
        self._bell.close()

    def _request(self, action):
        answer = Future()
        self._requests.put((action, answer))
        self._bell.send(b"!")
        return answer.result(SECONDS)

    # the network's own thread

    def _run(self):
        while not self._ended:
            for key, events in self._selector.select():
                # A socket closed after `select` returned is no longer in its map.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
        for connection in list(self._connections):
            connection.close()
        for one in (*self._listeners, self._rung):
            one.close()
        self._selector.close()

    def _answer(self):
        self._rung.recv(CHUNK)
        while not self._requests.empty():
            action, answer = self._requests.get()
            try:
                answer.set_result(action())
            except Exception as error:  # raised by the caller of `_request`
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
        except OSError:  # the target no longer listens
            accepted.close()
            return
        Connection(self._selector, self._connections, self._cut, pair, (accepted, onward))


class Connection:
    """Two sockets: the bytes received from one are sent to the other; both are closed together."""

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
        """Register for events: none while the pair is cut; an end is read only once the other has all its bytes."""
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
        """Close both ends and drop the bytes that wait."""
        for end, other in (self._ends, self._ends[::-1]):
            self._set(end, other, 0)
        for end in self._ends:
            end.close()
        self._connections.discard(self)


def install(client, network):
    """Put a network between all workers of a client, for the channels that they open from now on."""

    def dial_through(addresses):
        from dask_elastic.runtime.transport import peer

        direct = peer.connect

        async def connect(address, **arguments):
            return await direct(addresses.get(address, address), **arguments)

        peer.connect = connect

    workers = list(client.nthreads())
    for source in workers:
        addresses = {target: network.way(source, target) for target in workers if target != source}
        client.run(dial_through, addresses, workers=[source])

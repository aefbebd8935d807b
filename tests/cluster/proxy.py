"""A network between workers that can be cut: every worker dials every other through a proxy of its own."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Network:
    """Forwards bytes between pairs of workers; a pair that is cut keeps its connections, and hears nothing.

    Its ways are given to the workers by `install`; each connection is dialled through the proxy for (from, to).
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._cut = set()
        self._waiting = []
        self._lock = threading.Lock()
        self._closed = False
        self._sockets = []
        threading.Thread(target=self._run, name="network", daemon=True).start()

    def way(self, source, target):
        """Return the address at which `target` can be dialled by `source`."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self._sockets.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, (None, frozenset({source, target}), target))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def cut(self, one, other):
        """Let nothing through between two workers any more."""
        with self._lock:
            self._cut.add(frozenset({one, other}))

    def heal(self, one, other):
        """Let everything through again, what waited first."""
        with self._lock:
            self._cut.discard(frozenset({one, other}))
            waiting, self._waiting = self._waiting, []
        for source, data in waiting:
            if source.fileno() >= 0:
                self._selector.register(source, selectors.EVENT_READ, data)

    def close(self):
        """End."""
        self._closed = True

    def _run(self):
        while not self._closed:
            for key, _ in self._selector.select(0.1):
                self._ready(key.fileobj, key.data)
        for one in self._sockets:
            one.close()
        self._selector.close()

    def _ready(self, source, data):
        other, pair, target = data
        with self._lock:
            if pair in self._cut:
                self._selector.unregister(source)
                self._waiting.append((source, data))
                return
        if other is None:
            self._accept(source, pair, target)
            return
        try:
            received = source.recv(2**16)
            if received:
                other.sendall(received)
                return
        except OSError:
            received = b""
        for end in (source, other):
            with contextlib.suppress(KeyError, ValueError):  # it waits for the pair to be healed, or is closed already
                self._selector.unregister(end)
            end.close()

    def _accept(self, listener, pair, target):
        accepted, _ = listener.accept()
        host, port = target.removeprefix("tcp://").split(":")
        onward = socket.create_connection((host, int(port)))
        self._sockets += [accepted, onward]
        self._selector.register(accepted, selectors.EVENT_READ, (onward, pair, target))
        self._selector.register(onward, selectors.EVENT_READ, (accepted, pair, target))


def install(client, network):
    """Put a network between all workers of a client, for the channels that they dial from here on."""

    def dial_through(ways):
        from dask_elastic.runtime import peer

        direct = peer.connect

        async def connect(address, **arguments):
            return await direct(ways.get(address, address), **arguments)

        peer.connect = connect

    workers = list(client.scheduler_info()["workers"])
    for source in workers:
        ways = {target: network.way(source, target) for target in workers if target != source}
        client.run(dial_through, ways, workers=[source])

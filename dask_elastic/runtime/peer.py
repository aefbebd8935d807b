"""The way to one other worker: any thread sends, one Dask comm carries everything in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed.comm import connect

from dask_elastic.runtime.packet import Packet
from dask_elastic.runtime.wire import Buffers, Encoder, Header, encode_message, pack
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ToHome, ToRemote

if TYPE_CHECKING:
    from distributed import Worker

Run = tuple[str, int]
"""A job, and which run of it."""

COALESCED_BYTES = 4 * 2**20
"""A write carries the messages that wait, up to about this size."""


class Peer:
    """Sends to one worker. Messages arrive in the order in which `send` methods returned.

    Parameters
    ----------
    worker : distributed.Worker
        The worker that we are.
    address : str
        The worker that we talk to.
    on_broken : callable
        Told, on the event loop, when the connection is lost or cannot be made.

    Notes
    -----
    `Comm.write` has no back-pressure: what is sent here must be bounded by credit.
    """

    def __init__(self, worker: Worker, address: str, on_broken: Callable[[str, BaseException], None]):
        self.worker = worker
        self.address = address
        self._on_broken = on_broken
        self._loop = worker.loop.asyncio_loop
        self._lock = threading.Lock()
        self._schemas: dict[bytes, int] = {}
        self._encoder = Encoder(self._schema_number)
        self._waiting: deque[tuple[Header, Buffers]] = deque()
        self._kicked = False
        self._wanted = asyncio.Event()
        self._comm: Any = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def connect(self) -> None:
        """Dial the peer and start writing."""
        arguments = self.worker.security.get_connection_args("worker")
        self._comm = await connect(self.address, **arguments)
        await self._comm.write({"op": "elastic_stream", "reply": False, "sender": self.worker.address})
        self._task = asyncio.create_task(self._write_all())

    def send_batch(self, run: Run, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Send tuples to an executor."""
        buffers: Buffers = []
        header = self._encoder.batch(batch, buffers)
        self._append(["batch", run, *target, *origin, nbytes, header], buffers)

    def send_end(self, run: Run, target: ExecutorId, origin: ExecutorId) -> None:
        """Say that an upstream instance has sent its last batch."""
        self._append(["end", run, *target, *origin], [])

    def send_credit(self, run: Run, target: ExecutorId, origin: ExecutorId, nbytes: int) -> None:
        """Give credit back to an upstream instance of an executor of ours."""
        self._append(["credit", run, *target, *origin, nbytes], [])

    def send_message(self, run: Run, executor: ExecutorId, node: int, message: ToRemote | ToHome) -> None:
        """Send a message between a home and its remote tasks; `node` is the sender's."""
        buffers: Buffers = []
        header = encode_message(message, self._encoder, buffers)
        self._append(["message", run, *executor, node, header], buffers)

    def _schema_number(self, schema: bytes) -> int:
        with self._lock:
            number = self._schemas.get(schema)
            if number is None:
                number = self._schemas[schema] = len(self._schemas)
                self._put(["schema"], [schema])
            return number

    def _append(self, header: Header, buffers: Buffers) -> None:
        with self._lock:
            self._put(header, buffers)

    def _put(self, header: Header, buffers: Buffers) -> None:
        self._waiting.append((header, buffers))
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def _write_all(self) -> None:
        try:
            while not self._closed:
                await self._wanted.wait()
                packet = self._next_packet()
                if packet is not None:
                    await self._comm.write(packet.to_message())
        except Exception as error:  # whatever breaks the only way to a peer breaks the jobs that use it
            if not self._closed:
                self._on_broken(self.address, error)

    def _next_packet(self) -> Packet | None:
        headers: list[tuple[Header, int]] = []
        buffers: Buffers = []
        size = 0
        with self._lock:
            while self._waiting and size < COALESCED_BYTES:
                header, parts = self._waiting.popleft()
                headers.append((header, len(parts)))
                buffers += parts
                size += sum(len(part) for part in parts)
            if not self._waiting:
                self._kicked = False
                self._wanted.clear()
        return Packet([pack(headers), *buffers]) if headers else None

    async def close(self) -> None:
        """Close the connection; what has not been written is dropped."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._comm is not None:
            self._comm.abort()

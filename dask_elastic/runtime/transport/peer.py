"""The connection to one other worker: any thread sends, and one connection carries everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from distributed.comm import connect

from dask_elastic.executor.events import EndMark
from dask_elastic.executor.link import Link
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.config.worker_options import MAX_FRAME
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.runtime.transport.lanes import READY, CommLane, SocketLane, is_plain
from dask_elastic.runtime.transport.packet_queue import PacketQueue
from dask_elastic.runtime.transport.wire import Buffers, Encoder, Header, Message, encode_message
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ElasticError, NodeLost, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

READY_SECONDS = 30.0
"""Seconds within which a peer must accept a new connection."""

COALESCED_BYTES = 4 * 2**20
"""A write carries all queued messages, up to about this size."""


def address_of(worker: Worker) -> str:
    """Return the address under which other workers know a worker; it need not be the one where it listens."""
    address: str = worker.contact_address or worker.address
    return address


class Peer:
    """Sends messages to one worker; a message arrives before all that are sent after its `send` method returned.

    Parameters
    ----------
    worker : distributed.Worker
        This worker.
    address : str
        The other worker.
    on_broken : callable
        Called on the event loop when the connection is lost.
    limit : int
        Bytes of the largest message.
    incarnation : int
        Which connection to that worker this is; every packet carries it, with a sequence number.

    Notes
    -----
    Sending never blocks: what is sent must be bounded by credit.
    """

    def __init__(
        self,
        worker: Worker,
        address: str,
        on_broken: Callable[[Peer, BaseException], None],
        limit: int = MAX_FRAME,
        incarnation: int = 0,
    ):
        self.worker = worker
        self.address = address
        self._on_broken = on_broken
        self._limit = limit
        self._link = Link(incarnation)
        self._loop = worker.loop.asyncio_loop
        self._numbering = threading.Lock()
        self._schemas: dict[bytes, int] = {}
        self._encoder = Encoder(self._schema_number)
        self._queue = PacketQueue(COALESCED_BYTES, self._link.stamp)
        self._lane: CommLane | SocketLane | None = None
        self._closed = False

    async def connect(self) -> None:
        """Connect to the peer and agree on the lane.

        Raises
        ------
        NodeLost
            If it does not accept the connection.
        ProtocolError
            If it is not a worker with dask_elastic.
        """
        comm = await connect(self.address, **self.worker.security.get_connection_args("worker"))
        try:
            await self._begin(comm, is_plain(comm))
        except BaseException:  # no other code would close the connection
            comm.abort()
            raise

    async def _begin(self, comm: Comm, plain: bool) -> None:
        lane = "socket" if plain else "comm"
        begin = {"sender": address_of(self.worker), "lane": lane, "incarnation": self._link.incarnation}
        try:
            await comm.write({"op": "elastic_stream", "reply": False, **begin})
            if plain and await asyncio.wait_for(comm.stream.read_bytes(len(READY)), READY_SECONDS) != READY:
                raise ProtocolError(f"{self.address} does not answer as a worker with dask_elastic does")
        except TimeoutError as error:
            raise NodeLost(f"{self.address} did not accept a connection within {READY_SECONDS:g} s") from error
        except OSError as error:
            raise NodeLost(f"{self.address} did not accept a connection: {error!r}") from error
        self._lane = (SocketLane if plain else CommLane)(comm, self._queue.next_packet, self._broken)

    def _broken(self, error: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the worker with it
            self._loop.call_soon_threadsafe(self._report_broken, error)

    def _report_broken(self, error: BaseException) -> None:
        if not self._closed:
            self._on_broken(self, error)

    def send_batch(
        self, generation_id: JobGeneration, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int
    ) -> None:
        """Send tuples to an executor."""
        buffers: Buffers = []
        header = self._encoder.batch(batch, buffers)
        self._append(["batch", generation_id, *target, *origin, nbytes, header], buffers)

    def send_end(self, generation_id: JobGeneration, target: ExecutorId, origin: ExecutorId, version: int = 0) -> None:
        """Send the end of an upstream instance, and the version of the first tier under which it is sent."""
        self._append(["end", generation_id, *target, *origin, version], [])

    def send_watermark(
        self, generation_id: JobGeneration, target: ExecutorId, watermark: Watermark, version: int = 0
    ) -> None:
        """Send a watermark of an upstream instance, and the version of the first tier under which it is sent."""
        content = [*watermark.origin, watermark.time, watermark.idle, version]
        self._append(["watermark", generation_id, *target, *content], [])

    def send_barrier(self, generation_id: JobGeneration, target: ExecutorId, barrier: Barrier) -> None:
        """Send a barrier of an upstream instance."""
        self._append(["barrier", generation_id, *target, *barrier.origin, barrier.checkpoint], [])

    def send_end_mark(self, generation_id: JobGeneration, target: ExecutorId, mark: EndMark) -> None:
        """Send the end mark of an upstream instance to the home that an executor leaves."""
        self._append(["end_mark", generation_id, *target, *mark.origin, mark.version], [])

    def send_switch(self, generation_id: JobGeneration, executor: ExecutorId, table: HomeTable) -> None:
        """Let upstream instances of an executor use another table of homes."""
        self._append(["switch", generation_id, *executor, table.version, list(table.homes)], [])

    def send_fence(self, generation_id: JobGeneration, executor: ExecutorId, source: int, target: int) -> None:
        """Send the fence of an executor that moves from a node to another, behind its outputs."""
        self._append(["fence", generation_id, *executor, source, target], [])

    def send_fence_passed(self, generation_id: JobGeneration, executor: ExecutorId, node: int) -> None:
        """Confirm the fence of an executor, as a node that has got all of its outputs."""
        self._append(["fence_passed", generation_id, *executor, node], [])

    def send_group_fence(self, generation_id: JobGeneration, executor: ExecutorId, version: int) -> None:
        """Send the fence of an executor that gives key groups, behind its outputs."""
        self._append(["group_fence", generation_id, *executor, version], [])

    def send_group_fence_passed(
        self, generation_id: JobGeneration, executor: ExecutorId, version: int, node: int
    ) -> None:
        """Confirm such a fence, as a node that has got all of the outputs before it."""
        self._append(["group_fence_passed", generation_id, *executor, version, node], [])

    def send_credit(
        self,
        generation_id: JobGeneration,
        target: ExecutorId,
        origin: ExecutorId,
        nbytes: int,
        wanted_more: bool,
        is_part: bool = False,
    ) -> None:
        """Return credit to an upstream instance of an executor on this node."""
        self._append(["credit", generation_id, *target, *origin, nbytes, wanted_more, is_part], [])

    def send_messages(
        self,
        generation_id: JobGeneration,
        executor: ExecutorId,
        node: int,
        messages: Sequence[ToRemote | ToHome],
        fence: Fence,
    ) -> None:
        """Send messages between a home and its remote tasks; `node` is the sender's."""
        made: list[Message] = []
        for message in messages:
            buffers: Buffers = []
            header = encode_message(message, self._encoder, buffers)
            made.append((["message", generation_id, *executor, node, None, header], buffers))
        with fence.lock:
            kept = []
            for message, (header, buffers) in zip(messages, made, strict=True):
                stamp = fence.stamp(message)
                if stamp is not None:
                    header[5] = stamp
                    kept.append((header, buffers))
            transmits = self._put(kept)
        if transmits:
            self._transmit()

    def send_beat(self) -> None:
        """Send a heartbeat, or the messages that are queued already."""
        if self._queue.is_empty:
            self._append(["beat"], [])
        else:
            self.write_deferred()

    def write_deferred(self) -> None:
        """Write the messages that a thread has deferred, unless another thread has written them."""
        if self._queue.transmit_held():
            self._transmit()

    def _schema_number(self, schema: bytes) -> int:
        # Held until a new schema is queued: schemas are sent in the order of their numbers, and before any batch that
        # needs them.
        with self._numbering:
            number = self._schemas.get(schema)
            if number is None:
                number = self._schemas[schema] = len(self._schemas)
                self._queue.hold([(["schema"], [schema])])
            return number

    def _append(self, header: Header, buffers: Buffers) -> None:
        if self._put([(header, buffers)]):
            self._transmit()

    def _put(self, made: list[Message]) -> bool:
        """Queue messages for the wire; returns whether the caller is to transmit them."""
        for header, buffers in made:
            size = sum(map(len, buffers))
            if size > self._limit // 2:
                self._check_size(header, size)
        if DEFERRED.write(self):
            self._queue.hold(made)
            return False
        return self._queue.put(made)

    def _check_size(self, header: Header, size: int) -> None:
        # The packet's other messages and its padding must fit as well.
        if size + 2 * COALESCED_BYTES > self._limit:
            raise ElasticError(
                f"a message ({header[0]}) of {size} bytes is too large for elastic.max-frame, {self._limit}: raise it "
                "on every worker, give the operator more shards or executors, or flush its state more often"
            )

    def _transmit(self) -> None:
        assert self._lane is not None
        self._lane.transmit()

    def close(self) -> None:
        """Close the connection; messages that have not been written are dropped."""
        self._closed = True
        if self._lane is not None:
            self._lane.close()

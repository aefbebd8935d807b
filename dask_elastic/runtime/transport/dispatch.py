"""Dispatches the messages of another node to the parts of jobs that they are for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dask_elastic.executor.events import EndMark
from dask_elastic.executor.link import Link
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.wire import UNREADABLE, Decoder, Header, decode_message, fits, messages_of, unpack
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError, SchemaMismatch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp, ToHome, ToRemote
from dask_elastic.vocab.watermark import Watermark

logger = logging.getLogger("dask_elastic.ingress")

_INSTANCE: tuple[tuple[type, ...], ...] = ((str,), (int,))
_GENERATION: tuple[tuple[type, ...], ...] = ((str,), (list,))
_FIELDS = {
    "batch": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int,), (list,)),
    "credit": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int,), (bool,), (bool,)),
    "end": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int,)),
    "watermark": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int, type(None)), (bool,), (int,)),
    "barrier": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int,)),
    "end_mark": (*_GENERATION, *_INSTANCE, *_INSTANCE, (int,)),
    "switch": (*_GENERATION, *_INSTANCE, (int,), (list,)),
    "fence": (*_GENERATION, *_INSTANCE, (int,), (int,)),
    "fence_passed": (*_GENERATION, *_INSTANCE, (int,)),
    "group_fence": (*_GENERATION, *_INSTANCE, (int,)),
    "group_fence_passed": (*_GENERATION, *_INSTANCE, (int,), (int,)),
    "message": (*_GENERATION, *_INSTANCE, (int,), (list,), (list,)),
}


class Inbound(Protocol):
    """Takes what is sent to the instances of a job on this node."""

    def accept(self, target: ExecutorId, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch for an instance."""
        ...

    def take_credit(
        self, origin: ExecutorId, target: ExecutorId, nbytes: int, wanted_more: bool, is_part: bool
    ) -> None:
        """Take returned credit of an upstream instance."""
        ...

    def input_ended(self, target: ExecutorId, origin: ExecutorId, version: int) -> None:
        """Take the end of an upstream instance."""
        ...

    def receive_watermark(self, target: ExecutorId, watermark: Watermark, version: int) -> None:
        """Take a watermark of an upstream instance."""
        ...

    def receive_barrier(self, target: ExecutorId, barrier: Barrier) -> None:
        """Take a barrier of an upstream instance."""
        ...

    def receive_end_mark(self, target: ExecutorId, mark: EndMark) -> None:
        """Take the end mark of an upstream instance."""
        ...


class Homes(Protocol):
    """Takes what other nodes send while an executor changes its home; see `dask_elastic.migration.home_move`."""

    def switch(self, executor: ExecutorId, table: HomeTable) -> None:
        """Let the instances here send to the homes in a table from now on."""
        ...

    def fence(self, executor: ExecutorId, source: int, target: int) -> None:
        """Return credit of an executor to its next home from now on, and confirm it to the home before."""
        ...

    def fence_passed(self, executor: ExecutorId, node: int) -> None:
        """Note that a node has got all outputs of an executor that leaves this node."""
        ...


class Groups(Protocol):
    """Takes what other nodes send while key groups move; see `dask_elastic.migration.group_move`."""

    def pass_fence(self, executor: ExecutorId, version: int) -> None:
        """Confirm the fence of an executor that gives groups, behind its outputs."""
        ...

    def fence_passed(self, executor: ExecutorId, version: int, node: int) -> None:
        """Note that a node has got all outputs of an executor here that gives groups."""
        ...


class Receiver(Protocol):
    """A job's part on this node, as messages of other nodes reach it."""

    refused: int

    @property
    def spec(self) -> JobSpec:
        """The job; messages of other generations of it are refused."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the job has ended here."""
        ...

    @property
    def exchange(self) -> Inbound:
        """Takes batches, credit and control records."""
        ...

    @property
    def moves(self) -> Homes:
        """Takes messages about homes that move."""
        ...

    @property
    def groups(self) -> Groups:
        """Takes messages about key groups that move."""
        ...

    def receive_message(self, executor: ExecutorId, node: int, stamp: Stamp, message: ToRemote | ToHome) -> None:
        """Take a message between an executor's home and its remote tasks."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the job because of an error."""
        ...


class Dispatch:
    """Decodes the packets of one connection and dispatches their messages, in the thread that reads them.

    It never waits for credit, because credit arrives on the same connection.

    Parameters
    ----------
    receivers : mapping of str to Receiver
        The parts of jobs on this node.
    sender : str
        Address of the node that the packets come from.
    incarnation : int
        Which connection of that node this is, as the node announced when it connected.

    Attributes
    ----------
    refused : int
        Packets that arrived twice, or after the connection was given up, and messages for jobs that this node does not,
        or no longer, host.

    Notes
    -----
    Every message carries its job and generation; its packet carries a stamp with the incarnation of the connection and
    a sequence number. Messages that are stale in either respect are refused and counted.
    """

    def __init__(self, receivers: Mapping[str, Receiver], sender: str, incarnation: int = 0):
        self.receivers = receivers
        self.sender = sender
        self.refused = 0
        self._link = Link(incarnation)
        self._lock = threading.Lock()
        self._decoder = Decoder()

    def close(self) -> None:
        """Refuse all further packets: the connection was given up."""
        with self._lock:
            self._link.renew()

    def handle(self, packet: Packet) -> None:
        """Handle the messages of a packet in order; an error of one of them fails the job that it is for.

        Raises
        ------
        ProtocolError
            If the packet cannot be read, or one before it is missing.
        """
        headers, stamp = unpack(packet)
        with self._lock:
            admitted = self._link.admit(stamp)
        if not admitted:
            self._refuse(headers)
            return
        for header, parts in messages_of(packet, headers):
            self._handle_one(header, parts)

    def _refuse(self, headers: list[tuple[Header, int]]) -> None:
        """Count a stale packet as one here, and each of its messages at the part of its job."""
        self.refused += 1
        for header, _ in headers:
            if _is_addressed(header) and header[1][0] in self.receivers:
                self.receivers[header[1][0]].refused += 1

    def _handle_one(self, header: Header, parts: list[Any]) -> None:
        kind = header[0]
        if kind == "beat":
            return
        if kind == "schema":
            if len(parts) != 1:
                raise ProtocolError("a schema without its bytes")
            self._decoder.learn(bytes(parts[0]))
            return
        if not _is_addressed(header):
            raise ProtocolError(f"a message of the unknown kind {header!r:.200}")
        job, generation = header[1]
        receiver = self.receivers.get(job)
        if receiver is None or receiver.ended:
            self.refused += 1
        elif receiver.spec.generation != generation:
            receiver.refused += 1
        else:
            self._guarded(receiver, header, iter(parts))

    def _guarded(self, receiver: Receiver, header: Header, parts: Any) -> None:
        try:
            self._read(receiver, header, lambda: next(parts))()
        except Aborted:
            # The job has ended while this thread ran one of its tasks.
            logger.debug("job %r has ended: a message %r is dropped", header[1][0], header[0])
        except (
            SchemaMismatch
        ) as error:  # the user's rows: the job's failure names the operators, frames explain nothing
            receiver.fail(error)
        except Exception as error:  # an error in handling a message fails its job
            logger.exception("a message %r from %s cannot be handled", header[0], self.sender)
            receiver.fail(error)

    def _read(self, receiver: Receiver, header: Header, take: Callable[[], Any]) -> Callable[[], None]:
        """Read a message; returns the call that handles it.

        Raises
        ------
        ProtocolError
            If it cannot be read.
        """
        try:
            return self._parse(receiver, header, take)
        except UNREADABLE as error:
            raise ProtocolError(f"a message {header[0]!r} from {self.sender} cannot be read: {error!r}") from error

    def _parse(self, receiver: Receiver, header: Header, take: Callable[[], Any]) -> Callable[[], None]:
        decoder = self._decoder
        instance = ExecutorId(header[2], header[3])
        match header:
            case ["message", _, _, _, node, [int(incarnation), int(sequence)], inner]:
                stamp, message = Stamp(incarnation, sequence), decode_message(inner, decoder, take)
                return lambda: receiver.receive_message(instance, node, stamp, message)
            case ["batch", _, _, _, origin, index, nbytes, header_of_batch]:
                batch, sender = decoder.batch(header_of_batch, take), ExecutorId(origin, index)
                return lambda: receiver.exchange.accept(instance, sender, batch, nbytes)
            case ["credit", _, _, _, origin, index, nbytes, wanted_more, is_part]:
                sender = ExecutorId(origin, index)
                return lambda: receiver.exchange.take_credit(sender, instance, nbytes, wanted_more, is_part)
            case ["end", _, _, _, origin, index, version]:
                return lambda: receiver.exchange.input_ended(instance, ExecutorId(origin, index), version)
            case ["watermark", _, _, _, origin, index, at, idle, version]:
                watermark = Watermark(ExecutorId(origin, index), at, idle)
                return lambda: receiver.exchange.receive_watermark(instance, watermark, version)
            case ["barrier", _, _, _, origin, index, checkpoint]:
                return lambda: receiver.exchange.receive_barrier(
                    instance, Barrier(ExecutorId(origin, index), checkpoint)
                )
            case ["end_mark", _, _, _, origin, index, version]:
                return lambda: receiver.exchange.receive_end_mark(instance, EndMark(ExecutorId(origin, index), version))
            case ["switch", _, _, _, version, homes] if all(isinstance(home, int) for home in homes):
                return lambda: receiver.moves.switch(instance, HomeTable(version, tuple(homes)))
            case ["fence", _, _, _, source, target]:
                return lambda: receiver.moves.fence(instance, source, target)
            case ["fence_passed", _, _, _, node]:
                return lambda: receiver.moves.fence_passed(instance, node)
            case ["group_fence", _, _, _, version]:
                return lambda: receiver.groups.pass_fence(instance, version)
            case ["group_fence_passed", _, _, _, version, node]:
                return lambda: receiver.groups.fence_passed(instance, version, node)
        raise ProtocolError(f"a message of the unknown kind {header[0]!r}")


def _is_addressed(header: Header) -> bool:
    """Return whether a message is of a kind that carries a job, and carries one."""
    expected = _FIELDS.get(header[0]) if isinstance(header[0], str) else None
    return expected is not None and fits(header, expected) and fits(header[1], _INSTANCE)

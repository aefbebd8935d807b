"""Takes what other nodes sent to where it belongs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.packet import Packet
from dask_elastic.runtime.wire import Decoder, Header, decode_message, unpack
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.deployment import Deployment
    from dask_elastic.runtime.node import NodeRuntime

logger = logging.getLogger("dask_elastic.ingress")

RECEIVED = frozenset({"batch", "end"})
"""Kinds of messages for receivers; these keep their order among themselves."""


def at_once(work: Callable[[], None]) -> None:
    """Do it now."""
    work()


class Ingress:
    """Decodes packets and hands their messages over; it never waits for credit.

    Parameters
    ----------
    runtime : NodeRuntime
        Knows the deployments.
    defer : callable
        Takes the work that a receiver makes: tuples, which it splits, and the end of an input, which follows them.
        All else merely goes to a queue, which may happen on the event loop and saves the way to another thread.
    """

    def __init__(self, runtime: NodeRuntime, defer: Callable[[Callable[[], None]], None] = at_once):
        self.runtime = runtime
        self.defer = defer
        self._decoders: dict[str, Decoder] = {}

    def forget(self, sender: str) -> None:
        """Note that a new connection from `sender` begins: it tells its schemas anew."""
        self._decoders.pop(sender, None)

    def handle(self, sender: str, packet: Packet) -> None:
        """Handle the messages of a packet in order; an error fails the job that the message is for."""
        buffers = iter(packet.buffers)
        decoder = self._decoders.setdefault(sender, Decoder())
        for header, count in unpack(next(buffers)):
            parts = [next(buffers) for _ in range(count)]
            if header[0] == "schema":
                decoder.learn(bytes(parts[0]))
                continue
            job, generation = header[1]
            deployment = self.runtime.deployments.get(job)
            if deployment is None or deployment.ended or deployment.spec.generation != generation:
                continue
            work = functools.partial(self._guarded, sender, deployment, header, decoder, iter(parts))
            if header[0] in RECEIVED:
                self.defer(work)
            else:
                work()

    def _guarded(self, sender: str, deployment: Deployment, header: Header, decoder: Decoder, parts: Any) -> None:
        try:
            self._dispatch(deployment, header, decoder, parts)
        except Exception as error:  # whatever is wrong with a message is the job's error
            logger.exception("message %s from %s", header[0], sender)
            deployment.fail(error)

    @staticmethod
    def _dispatch(deployment: Deployment, header: Header, decoder: Decoder, parts: Any) -> None:
        def take() -> Any:
            return next(parts)

        match header:
            case ["batch", _, component, index, origin, origin_index, nbytes, batch]:
                target = ExecutorId(component, index)
                deployment.accept(target, ExecutorId(origin, origin_index), decoder.batch(batch, take), nbytes)
            case ["credit", _, component, index, origin, origin_index, nbytes]:
                deployment.release(ExecutorId(origin, origin_index), ExecutorId(component, index), nbytes)
            case ["end", _, component, index, origin, origin_index]:
                deployment.input_ended(ExecutorId(component, index), ExecutorId(origin, origin_index))
            case ["message", _, component, index, _, inner]:
                deployment.receive_message(ExecutorId(component, index), decode_message(inner, decoder, take))
            case _:
                raise ProtocolError(f"a message of the unknown kind {header[0]!r}")

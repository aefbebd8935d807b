"""Takes what other nodes sent to where it belongs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.packet import Packet
from dask_elastic.runtime.wire import Decoder, Header, decode_message, unpack
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.deployment import Deployment
    from dask_elastic.runtime.node import NodeRuntime

logger = logging.getLogger("dask_elastic.ingress")


class Ingress:
    """Decodes the packets of one connection and hands their messages over, in the thread that reads them.

    It never waits for credit, so that credit, which comes the same way, is never held up.

    Parameters
    ----------
    runtime : NodeRuntime
        Knows the deployments.
    sender : str
        Address of the node that the packets come from.
    """

    def __init__(self, runtime: NodeRuntime, sender: str):
        self.runtime = runtime
        self.sender = sender
        self._decoder = Decoder()

    def handle(self, packet: Packet) -> None:
        """Handle the messages of a packet in order; an error fails the job that the message is for."""
        buffers = iter(packet.buffers)
        for header, count in unpack(next(buffers)):
            parts = [next(buffers) for _ in range(count)]
            if header[0] == "schema":
                self._decoder.learn(bytes(parts[0]))
                continue
            job, generation = header[1]
            deployment = self.runtime.deployments.get(job)
            if deployment is None or deployment.ended or deployment.spec.generation != generation:
                continue
            self._guarded(deployment, header, iter(parts))

    def _guarded(self, deployment: Deployment, header: Header, parts: Any) -> None:
        try:
            self._dispatch(deployment, header, parts)
        except Exception as error:  # whatever is wrong with a message is the job's error
            logger.exception("message %s from %s", header[0], self.sender)
            deployment.fail(error)

    def _dispatch(self, deployment: Deployment, header: Header, parts: Any) -> None:
        decoder = self._decoder

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

"""What the instances of a job on this node say to those behind them besides tuples: punctuations, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dask_elastic.executor.inputs import Inputs, timed_components
from dask_elastic.executor.source_clock import SourceClock
from dask_elastic.topology.operators import SinkOperator
from dask_elastic.topology.source import Source
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.punctuation import Punctuation

if TYPE_CHECKING:
    from dask_elastic.runtime.deployment import Deployment
    from dask_elastic.runtime.peer import Peer


class Downstream:
    """The ways on which control records follow the tuples, in one order with them.

    Parameters
    ----------
    deployment : Deployment
        The job's part on this node.
    """

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self._timed = timed_components(deployment.components.values())

    def timed(self, instances: list[ExecutorId]) -> list[ExecutorId]:
        """Return those of some instances whose tuples have event time."""
        return [instance for instance in instances if instance.component in self._timed]

    def inputs(self, receiver: ExecutorId, instances: list[ExecutorId]) -> Inputs:
        """Return the inputs of a receiver."""
        return Inputs(receiver, instances, self.timed(instances))

    def clock(self, identity: ExecutorId, source: Source, now: float) -> SourceClock | None:
        """Return what makes punctuations of an instance's rows; None for a source without event time."""
        if source.event_time is None:
            return None
        options = self.deployment.spec.options
        interval, idle = options.punctuation_interval, options.idle_timeout
        return SourceClock(identity, source.event_time, source.slack, interval, idle, now)

    def punctuate(self, said: Punctuation | None) -> None:
        """Pass a punctuation on, if there is one, behind what its instance has delivered."""
        if said is None:
            return
        for target, peer in self._receivers(said.origin):
            if peer is None:
                self.deployment.hear(target, said)
            else:
                peer.send_punctuation(self.deployment.spec.run, target, said)

    def end(self, identity: ExecutorId) -> None:
        """Say that an instance has sent its last batch."""
        for target, peer in self._receivers(identity):
            if peer is None:
                self.deployment.input_ended(target, identity)
            else:
                peer.send_end(self.deployment.spec.run, target, identity)

    def _receivers(self, identity: ExecutorId) -> Iterator[tuple[ExecutorId, Peer | None]]:
        """Yield who gets what an instance puts out, and the way there; None for those on this node, as all sinks are.

        Raises
        ------
        NodeLost
            If the way to one has been lost.
        """
        deployment, spec = self.deployment, self.deployment.spec
        for name in dict.fromkeys(way.target for way in deployment.components[identity.component].exits):
            if isinstance(deployment.components[name].operator, SinkOperator):
                yield ExecutorId(name, deployment.node), None
                continue
            for target in spec.instances(name):
                node = spec.node_of(target)
                yield target, None if node == deployment.node else deployment.runtime.peer(spec.nodes[node])

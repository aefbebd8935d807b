"""What the instances of a job on this node say to those behind them besides tuples: watermarks, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dask_elastic.executor.inputs import Inputs, timed_components
from dask_elastic.executor.source_clock import SourceClock
from dask_elastic.topology.operators import SinkOperator
from dask_elastic.topology.source import Source
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.runtime.transport.peer import Peer
    from dask_elastic.runtime.worker.job_part import JobPart


class Downstream:
    """The ways on which control records follow the tuples, in one order with them.

    Parameters
    ----------
    job_part : JobPart
        The job's part on this node.
    """

    def __init__(self, job_part: JobPart):
        self.job_part = job_part
        self._timed = timed_components(job_part.components.values())

    def timed(self, instances: list[ExecutorId]) -> list[ExecutorId]:
        """Return those of some instances whose tuples have event time."""
        return [instance for instance in instances if instance.component in self._timed]

    def inputs(self, receiver: ExecutorId, instances: list[ExecutorId]) -> Inputs:
        """Return the inputs of a receiver."""
        return Inputs(receiver, instances, self.timed(instances))

    def clock(self, identity: ExecutorId, source: Source, now: float) -> SourceClock | None:
        """Return what makes watermarks of an instance's rows; None for a source without event time."""
        if source.event_time is None:
            return None
        options = self.job_part.spec.options
        interval, idle = options.watermark_interval, options.idle_timeout
        return SourceClock(identity, source.event_time, source.slack, interval, idle, now)

    def emit_watermark(self, said: Watermark | None) -> None:
        """Pass a watermark on, if there is one, behind what its instance has delivered."""
        if said is None:
            return
        for target, peer in self._receivers(said.origin):
            if peer is None:
                self.job_part.hear(target, said)
            else:
                peer.send_watermark(self.job_part.spec.run, target, said)

    def end(self, identity: ExecutorId) -> None:
        """Say that an instance has sent its last batch."""
        for target, peer in self._receivers(identity):
            if peer is None:
                self.job_part.input_ended(target, identity)
            else:
                peer.send_end(self.job_part.spec.run, target, identity)

    def _receivers(self, identity: ExecutorId) -> Iterator[tuple[ExecutorId, Peer | None]]:
        """Yield who gets what an instance puts out, and the way there; None for those on this node, as all sinks are.

        Raises
        ------
        NodeLost
            If the way to one has been lost.
        """
        job_part, spec = self.job_part, self.job_part.spec
        for name in dict.fromkeys(way.target for way in job_part.components[identity.component].exits):
            if isinstance(job_part.components[name].operator, SinkOperator):
                yield ExecutorId(name, job_part.node), None
                continue
            for target in spec.instances(name):
                node = spec.node_of(target)
                yield target, None if node == job_part.node else job_part.runtime.peer(spec.nodes[node])

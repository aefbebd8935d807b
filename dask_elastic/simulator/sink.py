"""A sink of a simulated job: it keeps its rows in memory."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from dask_elastic.executor.inputs import Inputs
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class SimulatedSink:
    """One instance of a sink.

    Parameters
    ----------
    world : Surroundings
        Returns credit, and counts steps.
    identity : ExecutorId
        Which instance of which sink.
    inputs : Inputs
        The upstream instances on its node.

    Attributes
    ----------
    received : list of (int, RecordBatch)
        The batches, each with the step at which it was received.
    """

    def __init__(self, world: Surroundings, identity: ExecutorId, inputs: Inputs):
        self.world = world
        self.identity = identity
        self.received: list[tuple[int, pa.RecordBatch]] = []
        self.inputs = inputs
        self._waiting: deque[tuple[ExecutorId, Batch | Watermark | None, int]] = deque()
        world.spawn(str(identity), self._run())

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch."""
        self._waiting.append((origin, batch, nbytes))

    def receive_watermark(self, watermark: Watermark) -> None:
        """Take a watermark of an upstream instance."""
        self._waiting.append((watermark.origin, watermark, 0))

    def input_ended(self, origin: ExecutorId) -> None:
        """Take the end of an upstream instance."""
        self._waiting.append((origin, None, 0))

    def _run(self) -> FiberSteps:
        while self.inputs.open:
            yield lambda: bool(self._waiting)
            origin, item, nbytes = self._waiting.popleft()
            match item:
                case None:
                    self.inputs.end(origin)
                case Watermark():
                    self.world.event_times.note(self.inputs, item)
                    self.inputs.advance(item)
                case Batch():
                    self.world.event_times.check(self.inputs, origin, item.rows)
                    self.received.append((self.world.schedule.steps, item.rows))
                    self.world.release(origin, self.identity, nbytes)
        yield from self.world.instance_ended(self.identity)

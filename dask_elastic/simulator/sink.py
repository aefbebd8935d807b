"""A sink of a simulated job: it keeps its rows in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor.control_records.alignment import Alignment
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.drivers.executor_driver import ControlRecord
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

Waiting = tuple[ExecutorId, Batch | Watermark | Barrier | None, int]
"""Who has sent it; a batch, a control record, or None for the end; and the bytes of credit."""


class Told(NamedTuple):
    """What the coordinator tells a sink about a checkpoint."""

    event: Literal["begun", "given up", "complete"]
    checkpoint: int


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
    received : iterable of (int, RecordBatch)
        What it had received before.

    Attributes
    ----------
    received : list of (int, RecordBatch)
        The batches, each with the step at which it was received.
    """

    def __init__(
        self,
        world: Surroundings,
        identity: ExecutorId,
        inputs: Inputs,
        received: Iterable[tuple[int, pa.RecordBatch]] = (),
    ):
        self.world = world
        self.identity = identity
        self.received = [*received]
        self.inputs = inputs
        self._alignment: Alignment[Waiting] = Alignment(inputs.open)
        self._waiting: deque[Waiting | Told] = deque()
        world.spawn(str(identity), self._run(), world.placement.node_of(identity))

    def take(self, origin: ExecutorId, item: tuple[Batch, int] | ControlRecord) -> None:
        """Take what an upstream instance has sent."""
        match item:
            case (batch, nbytes):
                self._waiting.append((origin, batch, nbytes))
            case events.InputWatermark(watermark):
                self._waiting.append((origin, watermark, 0))
            case events.InputEnded():
                self._waiting.append((origin, None, 0))
            case Barrier():
                self._waiting.append((origin, item, 0))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held for a checkpoint, and everything before has been heard."""
        return not self._alignment.is_active and not any(isinstance(one, Told) for one in self._waiting)

    def begin_checkpoint(self, checkpoint: int) -> None:
        """Begin a checkpoint."""
        self._waiting.append(Told("begun", checkpoint))

    def abandon_checkpoint(self, checkpoint: int) -> None:
        """Give up a checkpoint."""
        self._waiting.append(Told("given up", checkpoint))

    def complete_checkpoint(self, checkpoint: int) -> None:
        """Commit what was prepared for a checkpoint."""
        self._waiting.append(Told("complete", checkpoint))

    def _run(self) -> FiberSteps:
        ended = False
        yield from self._open()
        while True:
            yield lambda: bool(self._waiting)
            taken = self._waiting.popleft()
            if isinstance(taken, Told):
                yield from self._hear(taken)
            elif self._alignment.admit(taken[0], taken):
                yield from self._take(taken)
            for _, held in self._alignment.released():
                yield from self._take(held)
            if not ended and self._is_finished:
                ended = True
                yield from self.world.instance_ended(self.identity)

    def _open(self) -> FiberSteps:
        """Prepare for the first batch."""
        yield from ()

    @property
    def _is_finished(self) -> bool:
        return not self.inputs.open

    def _hear(self, told: Told) -> FiberSteps:
        match told.event:
            case "begun":
                self._alignment.begin(told.checkpoint)
                yield from self._prepare(self._alignment.completed())
            case "given up":
                self._alignment.passed(told.checkpoint)

    def _take(self, taken: Waiting) -> FiberSteps:
        origin, item, nbytes = taken
        match item:
            case None:
                self.inputs.end(origin)
                yield from self._prepare(self._alignment.ended(origin))
            case Watermark():
                self.world.event_times.note(self.inputs, item)
                self.inputs.advance(item)
            case Barrier():
                self._alignment.begin(item.checkpoint)
                yield from self._prepare(self._alignment.barrier(item))
            case Batch():
                self.world.event_times.check(self.inputs, origin, item.rows)
                self.received.append((self.world.schedule.steps, item.rows))
                self.world.release(origin, self.identity, nbytes)

    def _prepare(self, checkpoint: int | None) -> FiberSteps:
        if checkpoint is not None:
            self.world.checkpoints.received(checkpoint, self.identity, self.received)
            self._alignment.passed(checkpoint)
        yield from ()

"""One instance of a source of a simulated job."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.emitter import Emitter
from dask_elastic.simulator.checkpoints import SourceStanding
from dask_elastic.simulator.fiber import FiberSteps
from dask_elastic.simulator.surroundings import Surroundings
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.topology.source import SourceContext
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.errors import ElasticError, SourceError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

REST_STEPS = 60
"""The most steps for which a source is idle."""


class SimulatedSource:
    """Reads one instance of a source and sends its rows on.

    Parameters
    ----------
    world : Surroundings
        Delivers the rows.
    identity : ExecutorId
        Which instance of which source.
    operator : SourceOperator
        The source.
    instances : int
        How many instances share it.
    emitter : Emitter
        Routes its rows.
    start : SourceStanding
        Where to begin.
    """

    def __init__(
        self,
        world: Surroundings,
        identity: ExecutorId,
        operator: SourceOperator,
        instances: int,
        emitter: Emitter,
        start: SourceStanding,
    ):
        self.world = world
        self.identity = identity
        self.operator = operator
        self.instances = instances
        self.emitter = emitter
        self.clock = self._clock(start)
        self._standing = start
        self._requested: int | None = None
        world.spawn(str(identity), self._run(), world.placement.node_of(identity))

    def begin_checkpoint(self, checkpoint: int) -> None:
        """Have the barrier of a checkpoint sent before the next batch."""
        if self._standing.ended:
            self.world.checkpoints.reached(checkpoint, self.identity, self._standing)
        else:
            self._requested = max(checkpoint, self._requested or 0)

    def _clock(self, start: SourceStanding) -> SourceClock | None:
        source = self.operator.source
        if source.event_time is None:
            return None
        clock = SourceClock(self.identity, source.event_time, source.slack, idle_after=0.0)
        clock.newest = start.event_time
        return clock

    def _run(self) -> FiberSteps:
        clock = self.clock
        for rows, offset in () if self._standing.ended else self._read():
            yield None
            yield from self._pass_barrier()
            if clock is not None:
                yield from self._emit(clock.begin())
                self.world.event_times.leave_source(rows, clock.time)
            yield from self.world.deliver(self.identity, self.emitter.emit([rows], self.world.now))
            self._standing = SourceStanding(offset, event_time=None)
            if clock is not None:
                yield from self._emit(clock.sent(rows, self.world.now))
                yield from self._rest(clock)
        yield None
        if clock is not None:
            yield from self._emit(clock.end())
        yield from self.world.instance_ended(self.identity)
        self._standing = SourceStanding(ended=True)
        if self._requested is not None:
            self.world.checkpoints.reached(self._requested, self.identity, self._standing)

    def _pass_barrier(self) -> FiberSteps:
        checkpoint, self._requested = self._requested, None
        if checkpoint is not None:
            newest = None if self.clock is None else self.clock.newest
            standing = SourceStanding(self._standing.offset, event_time=newest)
            yield from self.world.emit_barrier(Barrier(self.identity, checkpoint))
            self.world.checkpoints.reached(checkpoint, self.identity, standing)

    def _rest(self, clock: SourceClock) -> FiberSteps:
        options, schedule = self.world.options, self.world.schedule
        if not options.rests or schedule.draw() >= options.rests:
            return
        yield from self._emit(clock.quiet(self.world.now))
        for _ in range(int(REST_STEPS * schedule.draw())):
            yield None

    def _emit(self, watermark: Watermark | None) -> FiberSteps:
        if watermark is not None:
            yield from self.world.emit_watermark(watermark)

    def _read(self) -> Iterator[tuple[pa.RecordBatch, object]]:
        source = self.operator.source
        mailbox = iter(()) if source.pushed else None
        context = SourceContext(self.identity.index, self.instances, self._standing.offset, mailbox=mailbox)
        try:
            yield from source.read(context)
        except ElasticError:
            raise
        except Exception as error:
            raise SourceError(
                f"source {self.operator.name!r} could not be read: {type(error).__name__}: {error}; fix it, or pass "
                "its rows instead"
            ) from error

"""How watermarks pass an executor: behind the outputs of all tuples that arrived before them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.instructions import EmitWatermark, Instruction
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.watermark import Watermark

_LEAST = -(2**63)
"""The earliest time that a channel can carry."""


class Standing(NamedTuple):
    """Event time reached, and whether the instance is idle; as in `Watermark`."""

    time: int | None = None
    idle: bool = False


class Span:
    """The batches that arrived between two watermarks.

    Attributes
    ----------
    open : int
        How many of them are not settled.
    then : Standing
        The standing once they and all earlier batches are settled; not read of the last span, which still grows.
    """

    __slots__ = ("open", "then")

    def __init__(self) -> None:
        self.open = 0
        self.then = Standing()


class Watermarks:
    """Event time of one executor: takes the watermarks of its inputs and emits its own.

    The driver calls `take`; for all else the caller holds the executor's lock.

    Each arriving batch counts in the last span until its last row is settled: a task has processed it and its outputs
    have left. A watermark closes the last span, and passes once this and all earlier spans have no open batch. So it
    does not matter where a row is meanwhile: in a task's queue, waiting for a moving shard, in flight to a remote task,
    or in a replay.

    Parameters
    ----------
    inputs : Inputs
        The executor's.
    lock : Lock
        The executor's.
    delay : int
        Microseconds by which times in the output may be older than the watermark of the inputs, so that the executor's
        own watermark is behind it until all inputs have ended.

    Attributes
    ----------
    now : Standing
        The standing that may be emitted: every older tuple is processed, and its outputs have left.

    Notes
    -----
    Enorm, section 6.2. Rows of a lost task whose outputs have not left keep their span open until the replay has
    processed them. Rows that were settled before the loss are replayed without outputs, so the emitted watermarks
    remain true.
    """

    def __init__(self, inputs: Inputs, lock: Lock, delay: int = 0):
        self.inputs = inputs
        self.delay = delay
        self.lock = lock
        self.timed = inputs.timed
        self.now = Standing()
        self._emitted = Standing()
        self._spans = deque([Span()])
        self._last = Standing()

    def arrived(self) -> Span | None:
        """Count an arriving batch; the caller passes its span to `settled` later."""
        if not self.timed:
            return None
        span = self._spans[-1]
        span.open += 1
        return span

    @staticmethod
    def settled(span: Span | None) -> None:
        """Count a batch as settled: all of its rows are processed, and their outputs have left."""
        if span is not None:
            span.open -= 1

    def inputs_advanced(self) -> None:
        """Let the new standing of the inputs pass behind the batches that arrived before."""
        time = self.inputs.time
        behind = self.delay if self.inputs.open else 0
        reached = Standing(None if time is None else max(time - behind, _LEAST), self.inputs.idle)
        if self.now.idle and not reached.idle:
            # Receivers must count this instance again before any further output reaches them.
            self.now = self.now._replace(idle=False)
        if not reached.idle:
            for span in self._spans:
                span.then = span.then._replace(idle=False)
        if reached == self._last:
            return
        self._last = reached
        if self._spans[-1].open:
            self._spans[-1].then = reached
            self._spans.append(Span())
        elif len(self._spans) > 1:
            self._spans[-2].then = reached
        else:
            self.now = reached

    def due(self) -> list[Instruction]:
        """Return `EmitWatermark` if the standing differs from the one emitted last."""
        if not self.timed:
            return []
        while len(self._spans) > 1 and not self._spans[0].open:
            self.now = self._spans.popleft().then
        return [EmitWatermark()] if self.now != self._emitted else []

    def standing(self) -> tuple[Standing, Standing, Standing]:
        """Return what the next home of the executor begins with; every batch is settled."""
        self.due()
        return self.now, self._emitted, self._last

    def resume(self, standing: tuple[Standing, Standing, Standing]) -> None:
        """Begin where the executor stood at its home before."""
        self.now, self._emitted, self._last = standing

    def take(self) -> Watermark | None:
        """Return the watermark that is due, or None.

        The driver calls this to carry out `EmitWatermark`, and before the end; it sends each watermark before it takes
        the next one.
        """
        with self.lock:
            if not self.due():
                return None
            self._emitted = self.now
            return Watermark(self.inputs.receiver, *self._emitted)

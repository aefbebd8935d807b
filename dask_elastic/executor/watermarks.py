"""How watermarks pass an executor: behind all outputs of the tuples that came before them, wherever these are."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dask_elastic.executor.inputs import Inputs
from dask_elastic.executor.instructions import EmitWatermark, Instruction
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.watermark import Watermark


class Standing(NamedTuple):
    """How far event time has come, and whether nothing comes for now; as in `Watermark`."""

    time: int | None = None
    idle: bool = False


class Span:
    """The batches that came between two watermarks.

    Attributes
    ----------
    open : int
        How many of them are not wholly processed.
    then : Standing
        What holds once they are, and those before them; of the last span, which is still growing, it is not read.
    """

    __slots__ = ("open", "then")

    def __init__(self) -> None:
        self.open = 0
        self.then = Standing()


class Watermarks:
    """Event time of one executor, from its inputs to what it says to those behind it.

    `take` is for the driver; all else is called by who holds the executor's lock.

    Each batch that comes in is counted in the span of its time, until its last row is settled: until a task has
    processed it and what came out has left. A watermark ends a span, and passes once this and all spans before are
    settled. So it does not matter where a row is meanwhile: in a task's queue, waiting for a shard that moves, on its
    way to a remote task, or once more at the beginning after that was lost.

    Parameters
    ----------
    inputs : Inputs
        The executor's.
    lock : Lock
        The executor's.

    Attributes
    ----------
    now : Standing
        What may be said: every older tuple is processed, and what came out of it has left.

    Notes
    -----
    Enorm, section 6.2. A task that is lost with rows of which nothing has left keeps their span open until they are
    processed again; rows that were settled before the loss are processed again without outputs, so what was said
    remains true.
    """

    def __init__(self, inputs: Inputs, lock: Lock):
        self.inputs = inputs
        self.lock = lock
        self.timed = inputs.timed
        self.now = Standing()
        self._said = Standing()
        self._spans = deque([Span()])
        self._last = Standing()

    def arrived(self) -> Span | None:
        """Count a batch that came in; it is to be `settled`."""
        if not self.timed:
            return None
        span = self._spans[-1]
        span.open += 1
        return span

    @staticmethod
    def settled(span: Span | None) -> None:
        """Count a batch as processed, and what came out of it as gone."""
        if span is not None:
            span.open -= 1

    def heard(self) -> None:
        """Let what the inputs say from now on pass behind the batches that came before."""
        heard = Standing(self.inputs.time, self.inputs.idle)
        if self.now.idle and not heard.idle:
            # Before anything else leaves: who does not wait for us has to begin to.
            self.now = self.now._replace(idle=False)
        if not heard.idle:
            for span in self._spans:
                span.then = span.then._replace(idle=False)
        if heard == self._last:
            return
        self._last = heard
        if self._spans[-1].open:
            self._spans[-1].then = heard
            self._spans.append(Span())
        elif len(self._spans) > 1:
            self._spans[-2].then = heard
        else:
            self.now = heard

    def due(self) -> list[Instruction]:
        """Return whether there is something to say, as an instruction."""
        if not self.timed:
            return []
        while len(self._spans) > 1 and not self._spans[0].open:
            self.now = self._spans.popleft().then
        return [EmitWatermark()] if self.now != self._said else []

    def take(self) -> Watermark | None:
        """Return what is to be said, once.

        Called to carry out `EmitWatermark`, and before the end; the caller sends it before the next one is taken.
        """
        with self.lock:
            if not self.due():
                return None
            self._said = self.now
            return Watermark(self.inputs.receiver, *self._said)

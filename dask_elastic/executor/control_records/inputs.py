"""The inputs of an executor or a sink: which have not ended, and the minimum of their watermarks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

InputState: TypeAlias = tuple[ExecutorId, bool, bool, bool, int | None]
"""An upstream instance: whether it has not ended, has event time, is idle; and its watermark."""


class Inputs:
    """The upstream instances of one receiver; the caller holds the receiver's lock.

    Parameters
    ----------
    receiver : ExecutorId
        The receiver.
    instances : iterable of ExecutorId
        All of its inputs.
    timed : iterable of ExecutorId
        Those whose tuples have event time; the others send no watermarks and do not count for the minimum.

    Attributes
    ----------
    open : set of ExecutorId
        The inputs that have not ended.
    time : int or None
        The oldest event time that can still arrive, microseconds since the epoch; None while unknown.

    Notes
    -----
    Enorm, section 6.2: the time is the minimum over the inputs that are neither idle nor ended. If all that have not
    ended are idle, it is the maximum of their times; if all have ended, the maximum over all.

    Examples
    --------
    >>> north, south = ExecutorId("readings", 0), ExecutorId("readings", 1)
    >>> inputs = Inputs(ExecutorId("per_station", 0), [north, south], timed=[north, south])
    >>> for watermark in (Watermark(north, 70), Watermark(south, 20), Watermark(south, 20, idle=True)):
    ...     inputs.advance(watermark)
    ...     print(inputs.time)
    None
    20
    70
    """

    def __init__(self, receiver: ExecutorId, instances: Iterable[ExecutorId], timed: Iterable[ExecutorId] = ()):
        self.receiver = receiver
        self.open = set(instances)
        self.time: int | None = None
        self._times: dict[ExecutorId, int | None] = dict.fromkeys(timed)
        self._idle: set[ExecutorId] = set()

    @property
    def timed(self) -> bool:
        """Whether any input has event time."""
        return bool(self._times)

    @property
    def idle(self) -> bool:
        """Whether all timed inputs that have not ended are idle."""
        waiting = self._times.keys() & self.open
        return bool(waiting) and waiting <= self._idle

    def is_idle(self, origin: ExecutorId) -> bool:
        """Whether an input is idle."""
        return origin in self._idle

    def resume(self, standing: Inputs) -> None:
        """Begin where the inputs stood at the receiver's home before."""
        self.open = set(standing.open)
        self.time = standing.time
        self._times = dict(standing._times)
        self._idle = set(standing._idle)

    def standing(self) -> list[InputState]:
        """Return how far each input is, without those that have ended and have no event time."""
        origins = sorted(self.open | self._times.keys())
        return [
            (origin, origin in self.open, origin in self._times, origin in self._idle, self._times.get(origin))
            for origin in origins
        ]

    @classmethod
    def of(cls, receiver: ExecutorId, standing: Iterable[InputState], time: int | None) -> Inputs:
        """Return the inputs of which another process has returned the `standing` and the `time`.

        Examples
        --------
        >>> inputs = Inputs(ExecutorId("per_station", 0), [ExecutorId("readings", 0)])
        >>> Inputs.of(inputs.receiver, inputs.standing(), inputs.time).open == inputs.open
        True
        """
        inputs = cls(receiver, ())
        inputs.time = time
        for origin, is_open, timed, idle, at in standing:
            if is_open:
                inputs.open.add(origin)
            if timed:
                inputs._times[origin] = at
            if idle:
                inputs._idle.add(origin)
        return inputs

    def end(self, origin: ExecutorId) -> None:
        """End an input, which has sent its last tuple.

        Raises
        ------
        ProtocolError
            If it has ended before, or is no input of the receiver.
        """
        if origin not in self.open:
            raise ProtocolError(f"{self.receiver}: {origin} ended twice, or is no input of it")
        self.open.discard(origin)
        self._idle.discard(origin)
        self._update()

    def advance(self, watermark: Watermark) -> None:
        """Take the watermark of an input.

        Raises
        ------
        ProtocolError
            If the input has ended, has no event time, or its event time goes back.
        """
        origin = watermark.origin
        if origin not in self.open or origin not in self._times:
            raise ProtocolError(f"{self.receiver}: {watermark} arrived, but {origin} has ended, or has no event time")
        before = self._times[origin]
        if before is not None and (watermark.time is None or watermark.time < before):
            raise ProtocolError(f"{self.receiver}: {watermark} arrived after time {before}: event time never goes back")
        self._times[origin] = watermark.time
        (self._idle.add if watermark.idle else self._idle.discard)(origin)
        self._update()

    def _update(self) -> None:
        waiting = [origin for origin in self._times if origin in self.open]
        active = [self._times[origin] for origin in waiting if origin not in self._idle]
        known = [time for origin in waiting or self._times if (time := self._times[origin]) is not None]
        if active:
            least = [time for time in active if time is not None]
            known = [min(least)] if len(least) == len(active) else []
        if known:
            time = max(known)
            self.time = time if self.time is None else max(self.time, time)


def timed_components(components: Iterable[Component]) -> frozenset[str]:
    """Return the names of the components whose tuples have event time: from their own source, or from their input.

    Parameters
    ----------
    components : iterable of Component
        In topological order, as `build_components` returns them.

    Returns
    -------
    frozenset of str
        The names.
    """
    timed: set[str] = set()
    for component in components:
        operator = component.operator
        of_source = isinstance(operator, SourceOperator) and operator.source.event_time is not None
        if of_source or timed.intersection(component.inputs):
            timed.add(component.name)
    return frozenset(timed)

"""The inputs of an executor or a sink: which of them have not ended, and how far event time has come."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class Inputs:
    """Upstream instances as their receiver knows them; called by who holds the receiver's lock.

    Parameters
    ----------
    receiver : ExecutorId
        Whose inputs they are.
    instances : iterable of ExecutorId
        All of them.
    timed : iterable of ExecutorId
        Those whose tuples have event time; the others say nothing of it, and nobody waits for them.

    Attributes
    ----------
    open : set of ExecutorId
        Those that have not ended.
    time : int or None
        The oldest event time that can still come, microseconds since the epoch; None while that is not known.

    Notes
    -----
    Enorm, section 6.2: the minimum over the inputs. One that has ended, or is idle, holds nobody up. Where all that
    have not ended are idle, none of these holds up another, so the greatest of their times counts; the same goes for
    those that have ended once all have.

    Examples
    --------
    >>> north, south = ExecutorId("readings", 0), ExecutorId("readings", 1)
    >>> inputs = Inputs(ExecutorId("per_station", 0), [north, south], timed=[north, south])
    >>> for said in (Watermark(north, 70), Watermark(south, 20), Watermark(south, 20, idle=True)):
    ...     inputs.hear(said)
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
        """Whether any of them has event time."""
        return bool(self._times)

    @property
    def idle(self) -> bool:
        """Whether all that have event time, and have not ended, are idle."""
        waiting = self._times.keys() & self.open
        return bool(waiting) and waiting <= self._idle

    def is_idle(self, origin: ExecutorId) -> bool:
        """Whether nobody waits for one of them for now."""
        return origin in self._idle

    def end(self, origin: ExecutorId) -> None:
        """Note that an input has sent its last tuple.

        Raises
        ------
        ProtocolError
            If it had ended, or is none.
        """
        if origin not in self.open:
            raise ProtocolError(f"{self.receiver}: input {origin} ended twice, or is none of its inputs")
        self.open.discard(origin)
        self._idle.discard(origin)
        self._advance()

    def hear(self, said: Watermark) -> None:
        """Note what an input says of its event time.

        Raises
        ------
        ProtocolError
            If it has ended, has no event time, or goes back in it.
        """
        origin = said.origin
        if origin not in self.open or origin not in self._times:
            raise ProtocolError(f"{self.receiver}: {said} came, but {origin} has ended, or has no event time")
        before = self._times[origin]
        if before is not None and (said.time is None or said.time < before):
            raise ProtocolError(f"{self.receiver}: {said} came after time {before}: event time never goes back")
        self._times[origin] = said.time
        (self._idle.add if said.idle else self._idle.discard)(origin)
        self._advance()

    def _advance(self) -> None:
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
    """Return the names of the components whose tuples have event time: a source's of its own, others' from their input.

    Parameters
    ----------
    components : iterable of Component
        Each behind those that it reads, as `build_components` returns them.
    """
    timed: set[str] = set()
    for component in components:
        operator = component.operator
        of_source = isinstance(operator, SourceOperator) and operator.source.event_time is not None
        if of_source or timed.intersection(component.inputs):
            timed.add(component.name)
    return frozenset(timed)

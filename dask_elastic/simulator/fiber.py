"""Fibers: simulated threads, written as generators that yield where a thread could be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

Condition: TypeAlias = Callable[[], bool]
FiberSteps: TypeAlias = Generator[Condition | None, None, None]
"""What a fiber runs: it yields a condition to wait for, or None to let other fibers run."""


def _always() -> bool:
    return True


class Fiber:
    """One simulated thread.

    Parameters
    ----------
    name : str
        Its name, for the history.
    steps : generator
        What it runs. All that happens between two yields is one atomic step.
    node : int, optional
        The node that it runs on; it is stopped or lost with that node.

    Attributes
    ----------
    pauses : float
        The share of its steps after which it is paused.
    paused_until : int
        The step before which it runs only if no other fiber can.

    Examples
    --------
    >>> log = []
    >>> def wait_for_entry():
    ...     log.append("waiting")
    ...     yield lambda: len(log) > 1
    ...     log.append("done")
    >>> fiber = Fiber("waiter", wait_for_entry())
    >>> fiber.step()
    >>> fiber.ready(), log
    (False, ['waiting'])
    """

    __slots__ = ("ended", "name", "node", "paused_until", "pauses", "ready", "steps")

    def __init__(self, name: str, steps: FiberSteps, node: int | None = None):
        self.name = name
        self.node = node
        self.steps = steps
        self.ready: Condition = _always
        self.ended = False
        self.pauses = 0.0
        self.paused_until = 0

    def step(self) -> None:
        """Run up to the next yield."""
        try:
            self.ready = next(self.steps) or _always
        except StopIteration:
            self.ended = True


class Bell:
    """Wakes the one fiber that waits for it; rings are counted, and each ends one wait."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings = 0

    def ring(self) -> None:
        """Wake the fiber that waits, or the next one that does."""
        self._rings += 1

    def wait(self) -> FiberSteps:
        """Continue after the next ring."""
        yield lambda: self._rings > 0
        self._rings -= 1


class FiberLock:
    """A reentrant lock between fibers.

    Parameters
    ----------
    running : callable
        Returns the fiber that runs.
    """

    __slots__ = ("_depth", "_owner", "_running")

    def __init__(self, running: Callable[[], Fiber | None]):
        self._running = running
        self._owner: Fiber | None = None
        self._depth = 0

    def acquire(self) -> FiberSteps:
        """Wait for the lock; its holder may acquire it again."""
        fiber = self._running()
        if self._owner is not fiber:
            yield lambda: self._owner is None
            self._owner = fiber
        self._depth += 1

    def release(self) -> None:
        """Release it once."""
        self._depth -= 1
        if not self._depth:
            self._owner = None


class NoFiberLock(FiberLock):
    """A lock that locks nothing."""

    __slots__ = ()

    def acquire(self) -> FiberSteps:
        """Continue without waiting."""
        yield None

    def release(self) -> None:
        """Do nothing."""

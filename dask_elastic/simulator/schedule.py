"""The scheduler of the simulation: a virtual clock, and a seeded choice of the fiber that runs next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from dask_elastic.simulator.fiber import Fiber, FiberSteps

_DRAWN_AT_ONCE = 1024
_TRIES = 4

SLOW_SHARE = 0.3
"""The share of fibers that are slow: if all of them paused, none would overtake another by much."""

MOST_PAUSED_STEPS = 200
"""A fiber that is paused lets others take up to this many steps."""


class Schedule:
    """Runs fibers one step at a time, interleaved at random.

    Parameters
    ----------
    random : numpy.random.Generator
        Chooses the next fiber and the length of each step; the same generator gives the same run.
    step_seconds : float
        The mean of the virtual time between two steps.
    keep_history : bool
        Whether to remember every step.
    pauses : float
        The share of steps after which a slow fiber is paused, as an operating system preempts a thread.

    Attributes
    ----------
    now : float
        The virtual time, seconds.
    steps : int
        Steps taken so far.
    stopped : set of int
        Nodes whose fibers do not run.

    Examples
    --------
    >>> log = []
    >>> def count(name):
    ...     for number in range(2):
    ...         log.append((name, number))
    ...         yield None
    >>> schedule = Schedule(np.random.default_rng(1))
    >>> schedule.spawn("a", count("a"))
    >>> schedule.spawn("b", count("b"))
    >>> while schedule.step():
    ...     pass
    >>> sorted(log)
    [('a', 0), ('a', 1), ('b', 0), ('b', 1)]
    """

    def __init__(
        self, random: np.random.Generator, step_seconds: float = 0.001, keep_history: bool = False, pauses: float = 0.0
    ):
        self.now = 0.0
        self.steps = 0
        self.random = random
        self.keep_history = keep_history
        self.pauses = pauses
        self.stopped: set[int] = set()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._calls = 0
        self._step_seconds = step_seconds
        self._fibers: list[Fiber] = []
        self._drawn: Iterator[float] = iter(())
        self._history: list[tuple[int, float, str, str, tuple[object, ...]]] = []
        self._running = ""
        self._fiber: Fiber | None = None

    def draw(self) -> float:
        """Return a random number from 0 to 1; many are drawn at once, for speed."""
        for number in self._drawn:
            return number
        self._drawn = iter(self.random.random(_DRAWN_AT_ONCE).tolist())
        return next(self._drawn)

    def spawn(self, name: str, steps: FiberSteps, node: int | None = None) -> None:
        """Add a fiber."""
        fiber = Fiber(name, steps, node)
        if self.pauses and self.draw() < SLOW_SHARE:
            fiber.pauses = self.pauses
        self._fibers.append(fiber)

    def kill(self, node: int) -> None:
        """End all fibers of a node."""
        self._end([fiber for fiber in self._fibers if fiber.node == node])

    def close(self) -> None:
        """End all fibers."""
        self._end(self._fibers)

    def _end(self, fibers: list[Fiber]) -> None:
        self._fibers = [fiber for fiber in self._fibers if fiber not in fibers]
        for fiber in fibers:
            if fiber is not self._fiber:
                fiber.steps.close()

    def at(self, step: int, call: Callable[[], None]) -> None:
        """Call something before a step; earlier if all fibers wait. Calls for one step run in the order of `at`."""
        heapq.heappush(self._agenda, (step, self._calls, call))
        self._calls += 1

    def forget_calls(self) -> None:
        """Call nothing any more of what `at` was given."""
        self._agenda.clear()

    def _call_next(self) -> None:
        _, _, call = heapq.heappop(self._agenda)
        self._running, self._fiber = "agenda", None
        call()

    def step(self) -> bool:
        """Run one step of a fiber that does not wait; return whether there was one."""
        while self._agenda and self._agenda[0][0] <= self.steps:
            self._call_next()
        while (fiber := self._chosen()) is None:
            if not self._agenda:
                return False
            self._call_next()
        self.now += 2 * self._step_seconds * self.draw()
        self.steps += 1
        self._running, self._fiber = fiber.name, fiber
        fiber.step()
        self._fiber = None
        if fiber not in self._fibers:
            # It has ended all fibers of its node, itself included.
            fiber.steps.close()
        elif fiber.ended:
            self._fibers.remove(fiber)
        elif fiber.pauses and self.draw() < fiber.pauses:
            fiber.paused_until = self.steps + int(MOST_PAUSED_STEPS * self.draw())
        return True

    def _chosen(self) -> Fiber | None:
        """Return one of the fibers that neither wait nor pause; all of them are equally likely."""
        fibers, stopped, draw, count = self._fibers, self.stopped, self.draw, len(self._fibers)
        for _ in range(_TRIES if fibers else 0):
            # Cheaper than checking all of them, as long as not too many wait.
            fiber = fibers[int(draw() * count)]
            if fiber.node not in stopped and fiber.paused_until <= self.steps and fiber.ready():
                return fiber
        ready = [fiber for fiber in fibers if fiber.node not in stopped and fiber.ready()]
        if self.pauses:
            ready = [fiber for fiber in ready if fiber.paused_until <= self.steps] or ready
        return ready[int(self.draw() * len(ready))] if ready else None

    def record(self, what: str, *values: object) -> None:
        """Add an entry of the running fiber to the history; `values` fill the braces of `what`."""
        if self.keep_history:
            self._history.append((self.steps, self.now, self._running, what, values))

    def running(self) -> Fiber | None:
        """Return the fiber whose step is being taken."""
        return self._fiber

    def waiting(self) -> list[str]:
        """Return the names of the fibers that have not ended."""
        return [fiber.name for fiber in self._fibers]

    def history(self, last: int = 200) -> str:
        """Return the last entries of the history as text."""
        return "\n".join(
            f"{step:6d} {now:9.4f}  {name}: {what.format(*values)}"
            for step, now, name, what, values in self._history[-last:]
        )

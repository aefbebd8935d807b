"""Threads without threads: generators that yield where a real thread could lose the processor."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

Condition: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[Condition | None, None, None]
"""What a fiber runs: it yields a condition to wait for, or None where it may go on at once."""


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
        The node that it runs on, and is stopped or lost with.

    Examples
    --------
    >>> said = []
    >>> def greet():
    ...     said.append("hello")
    ...     yield lambda: len(said) > 1
    ...     said.append("good bye")
    >>> fiber = Fiber("greeter", greet())
    >>> fiber.step()
    >>> fiber.ready(), said
    (False, ['hello'])
    """

    __slots__ = ("ended", "name", "node", "ready", "steps")

    def __init__(self, name: str, steps: Steps, node: int | None = None):
        self.name = name
        self.node = node
        self.steps = steps
        self.ready: Condition = _always
        self.ended = False

    def step(self) -> None:
        """Run up to the next yield."""
        try:
            self.ready = next(self.steps) or _always
        except StopIteration:
            self.ended = True


class Bell:
    """Wakes the one fiber that waits for it; every ring counts."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings = 0

    def ring(self) -> None:
        """Wake the fiber that waits, or the next one that does."""
        self._rings += 1

    def wait(self) -> Steps:
        """Go on after the next ring."""
        yield lambda: self._rings > 0
        self._rings -= 1

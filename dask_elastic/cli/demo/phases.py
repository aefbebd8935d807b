"""The phases of the demonstration, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable


class Phases:
    """Measures consecutive phases.

    Parameters
    ----------
    clock : callable, optional
        Returns the time, in seconds.

    Examples
    --------
    >>> ticks = iter([0.0, 2.0, 5.5, 26.0])
    >>> phases = Phases(lambda: next(ticks))
    >>> phases.begin("start")
    >>> phases.begin("calibration")
    >>> phases.begin("flights")
    >>> phases.text()
    'Done in 26 s: start 2.0 s, calibration 3.5 s, flights 20.5 s.'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._begins: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        """Begin a phase, unless it is the present one; it ends the one before."""
        if not self._begins or self._begins[-1][0] != name:
            self._begins.append((name, self._clock()))

    def text(self) -> str:
        """End the last phase, and describe the duration of all."""
        ends = [*(began for _, began in self._begins[1:]), self._clock()]
        parts = [f"{name} {end - began:.1f} s" for (name, began), end in zip(self._begins, ends, strict=True)]
        return f"Done in {ends[-1] - self._begins[0][1]:.0f} s: {', '.join(parts)}."

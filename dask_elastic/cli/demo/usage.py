"""The use of processors: by this program with all of its processes, and by others."""

from __future__ import annotations

import contextlib
import time

import psutil  # type: ignore[import-untyped]  # distributed depends on it


class Usage:
    """Measures how many processors are busy from one call of `sample` to the next.

    Attributes
    ----------
    processors : int
        The number of processors.
    """

    def __init__(self) -> None:
        self.processors = psutil.cpu_count() or 1
        psutil.cpu_percent()
        self._at, self._own = time.monotonic(), _own_seconds()

    def sample(self) -> tuple[float, float]:
        """Return how many processors were busy with this program, and how many with others."""
        at, own = time.monotonic(), _own_seconds()
        busy = psutil.cpu_percent() / 100 * self.processors
        used = max(own - self._own, 0.0) / max(at - self._at, 1e-3)
        self._at, self._own = at, own
        return used, max(busy - used, 0.0)


def _own_seconds() -> float:
    """Return the processor time of this process and of those that it started, and that still run."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total

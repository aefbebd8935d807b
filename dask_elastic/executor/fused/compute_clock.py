"""The processor time of one of several computes that run in one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dask_elastic.state.store import KeyedStore

P = ParamSpec("P")
R = TypeVar("R")


class ComputeClock:
    """Adds up the time that a compute's logic takes in one task; belongs to that task's thread.

    Parameters
    ----------
    store : KeyedStore
        The compute's store, which keeps the sum.
    task : int
        The task.

    Attributes
    ----------
    read : callable or None
        Returns the processor time of the thread, in seconds; None to measure nothing.

    Examples
    --------
    >>> store = KeyedStore(1, lambda hashes: hashes.astype(int))
    >>> clock, times = ComputeClock(store, 3), iter([1.0, 1.5])
    >>> clock.read = lambda: next(times)
    >>> clock.run(sum, [1, 2]), store.microseconds
    (3, {3: 500000})
    """

    __slots__ = ("_store", "_task", "read")

    def __init__(self, store: KeyedStore, task: int) -> None:
        self.read: Callable[[], float] | None = None
        self._store = store
        self._task = task

    def run(self, logic: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Return what the logic returns for a batch, and add the time that it takes."""
        if self.read is None:
            return logic(*given, **named)
        began = self.read()
        try:
            return logic(*given, **named)
        finally:
            taken = round(1e6 * (self.read() - began))
            self._store.microseconds[self._task] = self._store.microseconds.get(self._task, 0) + taken

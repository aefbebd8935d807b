"""The newest generation of each job on a node: calls may overtake each other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from dask_elastic.vocab.errors import UnknownJob

MOST_JOBS = 1_000
"""Jobs that are remembered. A call that so many later jobs have overtaken is not refused."""


class NewestGenerations:
    """Refuses to build parts of generations that have ended; used on the event loop of the worker.

    Parameters
    ----------
    most : int, optional
        Jobs to remember, so that a worker may host any number of them one after the other.

    Examples
    --------
    >>> newest = NewestGenerations()
    >>> newest.begin("delays", 4)
    >>> newest.begin("delays", 3)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.UnknownJob: generation 3 of job 'delays' has ended
    """

    def __init__(self, most: int = MOST_JOBS) -> None:
        # In the order in which they were last noted.
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._most = most
        self._dismissed: dict[str, tuple[int, int]] = {}
        # A lock exists as long as it is held or waited for.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def begin(self, job: str, generation: int, incarnation: int | None = None) -> None:
        """Note a generation that is to be built; raises `UnknownJob` as `check`."""
        self.check(job, generation, incarnation)
        self._note(job, generation)

    def check(self, job: str, generation: int, incarnation: int | None = None) -> None:
        """Raise `UnknownJob` if a later generation is known, or this one or its incarnation was forgotten."""
        if generation < self._newest.get(job, 0):
            raise UnknownJob(f"generation {generation} of job {job!r} has ended")
        dismissed, last = self._dismissed.get(job, (0, 0))
        if incarnation is not None and generation == dismissed and incarnation <= last:
            raise UnknownJob(f"generation {generation} of job {job!r} goes on without this worker")

    def forget(self, job: str, generation: int) -> None:
        """Note that a generation has ended."""
        self._note(job, max(self._newest.get(job, 0), generation + 1))

    def dismiss(self, job: str, generation: int, incarnation: int) -> None:
        """Note that a generation goes on without the incarnations of this worker up to one."""
        self._note(job, max(self._newest.get(job, 0), generation))
        if generation >= self._dismissed.get(job, (0, 0))[0]:
            self._dismissed[job] = max((generation, incarnation), self._dismissed.get(job, (0, 0)))

    def _note(self, job: str, generation: int) -> None:
        self._newest[job] = generation
        self._newest.move_to_end(job)
        if len(self._newest) > self._most:
            oldest, _ = self._newest.popitem(last=False)
            self._dismissed.pop(oldest, None)

    def lock(self, job: str) -> asyncio.Lock:
        """Return the lock that is held while a part of a job is built."""
        return self._locks.setdefault(job, asyncio.Lock())

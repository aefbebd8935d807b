"""The newest generation of each job on a node: calls may overtake each other."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from dask_elastic.vocab.errors import UnknownJob


class NewestGenerations:
    """Refuses to build parts of generations that have ended; used on the event loop of the worker.

    Examples
    --------
    >>> newest = NewestGenerations()
    >>> newest.begin("delays", 4)
    >>> newest.begin("delays", 3)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.UnknownJob: generation 3 of job 'delays' has ended
    """

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def begin(self, job: str, generation: int) -> None:
        """Note a generation that is to be built; raises `UnknownJob` if a later one is known."""
        self.check(job, generation)
        self._newest[job] = generation

    def check(self, job: str, generation: int) -> None:
        """Raise `UnknownJob` if a later generation is known, or this one was forgotten."""
        if generation < self._newest.get(job, 0):
            raise UnknownJob(f"generation {generation} of job {job!r} has ended")

    def forget(self, job: str, generation: int) -> None:
        """Note that a generation has ended."""
        self._newest[job] = max(self._newest.get(job, 0), generation + 1)

    def lock(self, job: str) -> asyncio.Lock:
        """Return the lock that is held while a part of a job is built."""
        return self._locks[job]

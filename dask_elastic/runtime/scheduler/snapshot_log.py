"""The newest snapshots of the cluster, bounded in number and in bytes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from dask_elastic.vocab.snapshot import Snapshot

KEPT = 600
KEPT_BYTES = 32 * 2**20
EXECUTOR_BYTES = 1_000
"""Approximate bytes of an executor without the arrays of its shards and its traffic."""
TRAFFIC_BYTES = 24
"""Approximate bytes of the traffic from one upstream instance to one executor."""


class SnapshotLog:
    """Keeps the newest snapshots.

    Parameters
    ----------
    length : int
        How many at most.
    limit : int
        How many bytes they may take, approximately; the newest is always kept.

    Examples
    --------
    >>> log = SnapshotLog(length=2)
    >>> for second in range(3):
    ...     log.add(Snapshot(float(second), (), ()))
    >>> [snapshot.now for snapshot in log.snapshots]
    [1.0, 2.0]
    """

    def __init__(self, length: int = KEPT, limit: int = KEPT_BYTES):
        self.length = length
        self.limit = limit
        self._kept: deque[tuple[Snapshot, int]] = deque()
        self._bytes = 0

    @property
    def snapshots(self) -> list[Snapshot]:
        """The kept snapshots, oldest first."""
        return [snapshot for snapshot, _ in self._kept]

    def add(self, snapshot: Snapshot, size: int | None = None) -> None:
        """Keep a snapshot, whose size by `bytes_of` may be known, and drop the oldest ones beyond the bounds."""
        size = bytes_of(snapshot) if size is None else size
        self._kept.append((snapshot, size))
        self._bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self.length or self._bytes > self.limit):
            self._bytes -= self._kept.popleft()[1]

    def of(self, job: str, generation: int, last: int | None = None, nbytes: int | None = None) -> list[Snapshot]:
        """Return the newest snapshots that contain a generation of a job, oldest first.

        Parameters
        ----------
        job : str
            The job.
        generation : int
            Its generation.
        last : int, optional
            How many at most; all of them if left out.
        nbytes : int, optional
            How many bytes they may take, approximately; no limit if left out.
        """
        found: list[Snapshot] = []
        left = math.inf if nbytes is None else nbytes
        for snapshot, size in reversed(self._kept):
            if len(found) == last or left < size:
                break
            if any((one.name, one.generation) == (job, generation) for one in snapshot.jobs):
                found.append(snapshot)
                left -= size
        return found[::-1]


def bytes_of(snapshot: Snapshot, pause: Callable[[], None] = lambda: None) -> int:
    """Return the bytes that a snapshot takes, approximately.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    pause : callable
        Called after each executor, so that a CPU-bound thread can yield.
    """
    found = 0
    for job in snapshot.jobs:
        for executor in job.executors:
            arrays = executor.shard_load, executor.shard_bytes, executor.groups
            found += sum([array.nbytes for array in arrays if array is not None])
            found += sum([flow.nbytes for flow in executor.flows])
            found += EXECUTOR_BYTES + TRAFFIC_BYTES * len(executor.traffic)
            pause()
    return found

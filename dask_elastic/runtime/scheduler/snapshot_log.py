"""The snapshots of late, bounded in number and in bytes."""

from __future__ import annotations

from collections import deque

from dask_elastic.vocab.snapshot import Snapshot

KEPT = 600
KEPT_BYTES = 32 * 2**20
EXECUTOR_BYTES = 1_000
"""What an executor takes beside the arrays of its shards, roughly."""


class SnapshotLog:
    """Keeps the newest snapshots.

    Parameters
    ----------
    length : int
        How many at most.
    limit : int
        How many bytes they may take, roughly; the newest is kept in any case.

    Examples
    --------
    >>> tape = SnapshotLog(length=2)
    >>> for second in range(3):
    ...     tape.add(Snapshot(float(second), (), ()))
    >>> [snapshot.now for snapshot in tape.snapshots]
    [1.0, 2.0]
    """

    def __init__(self, length: int = KEPT, limit: int = KEPT_BYTES):
        self.length = length
        self.limit = limit
        self._kept: deque[tuple[Snapshot, int]] = deque()
        self._bytes = 0

    @property
    def snapshots(self) -> list[Snapshot]:
        """What is kept, oldest first."""
        return [snapshot for snapshot, _ in self._kept]

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and drop the oldest while there are too many."""
        size = _size(snapshot)
        self._kept.append((snapshot, size))
        self._bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self.length or self._bytes > self.limit):
            self._bytes -= self._kept.popleft()[1]

    def of(self, job: str, generation: int, last: int | None = None) -> list[Snapshot]:
        """Return the newest snapshots that show a run of a job, oldest first.

        Parameters
        ----------
        job : str
            The job.
        generation : int
            Which run of it.
        last : int, optional
            How many at most; all of them if left out.
        """
        found = [s for s in self.snapshots if any((j.name, j.generation) == (job, generation) for j in s.jobs)]
        return found if last is None else found[max(0, len(found) - last) :]


def _size(snapshot: Snapshot) -> int:
    arrays = (
        array.nbytes
        for job in snapshot.jobs
        for executor in job.executors
        for array in (executor.shard_load, executor.shard_bytes)
        if array is not None
    )
    return sum(arrays) + EXECUTOR_BYTES * sum(len(job.executors) for job in snapshot.jobs)

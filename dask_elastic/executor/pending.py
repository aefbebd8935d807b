"""The pending queue of a remote task: what was sent to it and is not in the primary copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dask_elastic.executor.task_queue import Work
from dask_elastic.vocab.errors import ProtocolError


@dataclass(slots=True)
class Sent:
    """A sub-batch in the pending queue; `settled` once the task has processed it and its outputs have left."""

    number: int
    work: Work
    nbytes: int
    settled: bool = False


class Pending:
    """The pending queue of one remote task: the sub-batches, by number, whose effect the primary copy lacks.

    Parameters
    ----------
    limit : int
        Bytes that it may hold; the last sub-batch may exceed it.

    Attributes
    ----------
    nbytes : int
        Bytes that it holds.
    emitted : int
        Number of the last sub-batch whose outputs have left.
    left : dict of int to int
        For each shard that was flushed alone, the number of the last sub-batch in its primary copy.
    flush_requested : bool
        Whether a flush that trims the queue is in progress.

    Notes
    -----
    Elasticutor, section 3.1. The paper's t_s, up to which the state is in the primary copy, is kept for each shard: a
    flush of the task raises it for all of its shards, a label or the flush ahead of it for one. Sub-batches that the
    primary copies of all shards have are trimmed; `left` has the higher numbers of single shards.

    The queue keeps the batches that were built to be sent, and copies nothing.
    """

    __slots__ = ("_sent", "emitted", "flush_requested", "left", "limit", "nbytes")

    def __init__(self, limit: int):
        self.limit = limit
        self.nbytes = 0
        self.emitted = -1
        self.left: dict[int, int] = {}
        self.flush_requested = False
        self._sent: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    @property
    def has_room(self) -> bool:
        """Whether another sub-batch may be sent."""
        return self.nbytes < self.limit

    @property
    def is_short(self) -> bool:
        """Whether the queue is not half full."""
        return 2 * self.nbytes < self.limit

    def request_flush(self) -> bool:
        """Whether to request a flush now: the queue is half full; True again only after `flush_arrived`."""
        if self.flush_requested or self.is_short:
            return False
        self.flush_requested = True
        return True

    def flush_arrived(self) -> None:
        """Mark the flush as arrived."""
        self.flush_requested = False

    def add(self, number: int, work: Work) -> None:
        """Append a sub-batch before it is sent."""
        work.keeps = True
        nbytes = work.nbytes
        self._sent.append(Sent(number, work, nbytes))
        self.nbytes += nbytes

    def settle(self, number: int) -> None:
        """Mark a sub-batch as processed, its outputs as having left."""
        sent = self._sent[number - self._sent[0].number]
        sent.settled = True
        sent.work.settle()

    def trim(self, through: int) -> None:
        """Drop the sub-batches up to `through`, which are in the primary copy.

        Raises
        ------
        ProtocolError
            If one of them is not settled.
        """
        while self._sent and self._sent[0].number <= through:
            if not self._sent[0].settled:
                raise ProtocolError(
                    f"a flush covers sub-batch {through}, but sub-batch {self._sent[0].number} is not settled"
                )
            self.nbytes -= self._sent.popleft().nbytes

    def leave(self, shard: int, through: int) -> None:
        """Note the last sub-batch in the primary copy of one shard, which was flushed alone."""
        self.left[shard] = through

    def lacks(self, shard: int, number: int) -> bool:
        """Whether the primary copy of a shard lacks the effect of a sub-batch."""
        return number > self.left.get(shard, -1)

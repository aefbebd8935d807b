"""What was sent to a remote task and would be lost with it: its pending queue."""

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
    """The pending queue of one remote task: sub-batches, by number, whose effect is not in the primary copy yet.

    Parameters
    ----------
    limit : int
        Bytes that it may hold; the last sub-batch may overshoot.

    Attributes
    ----------
    nbytes : int
        Bytes that it holds.
    emitted : int
        The last sub-batch of which outputs have left.
    left : dict of int to int
        The last sub-batch that is in the primary copy of a shard that a label took away from the task.
    asked : bool
        Whether a flush was asked for so that the queue gets shorter.

    Notes
    -----
    Elasticutor, section 3.1. The paper's t_s, up to which the state is part of the primary copy, is kept for each
    shard: a flush brings all shards of the task up to a number, a label only the one that leaves. What all shards have
    in common is trimmed; `left` says more of those that left.

    The queue holds on to batches that were built to be sent, and copies nothing.
    """

    __slots__ = ("_sent", "asked", "emitted", "left", "limit", "nbytes")

    def __init__(self, limit: int):
        self.limit = limit
        self.nbytes = 0
        self.emitted = -1
        self.left: dict[int, int] = {}
        self.asked = False
        self._sent: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    @property
    def has_room(self) -> bool:
        """Whether one more sub-batch may be sent."""
        return self.nbytes < self.limit

    def ask(self) -> bool:
        """Say whether it is time to ask for a flush; one is under way then until `answered`."""
        if self.asked or 2 * self.nbytes < self.limit:
            return False
        self.asked = True
        return True

    def answered(self) -> None:
        """Note that a flush came."""
        self.asked = False

    def add(self, number: int, work: Work) -> None:
        """Append a sub-batch that is about to be sent."""
        work.keeps = True
        nbytes = work.nbytes
        self._sent.append(Sent(number, work, nbytes))
        self.nbytes += nbytes

    def settle(self, number: int) -> None:
        """Note that a sub-batch is processed and its outputs have left."""
        sent = self._sent[number - self._sent[0].number]
        sent.settled = True
        sent.work.settle()

    def trim(self, through: int) -> None:
        """Forget what has become part of the primary copy.

        Raises
        ------
        ProtocolError
            If that would include work that is not done yet.
        """
        while self._sent and self._sent[0].number <= through:
            if not self._sent[0].settled:
                raise ProtocolError(f"state came up to sub-batch {through}, but {self._sent[0].number} is not done")
            self.nbytes -= self._sent.popleft().nbytes

    def leave(self, shard: int, through: int) -> None:
        """Note up to which sub-batch the primary copy of a shard is, which a label took away."""
        self.left[shard] = through

    def lacks(self, shard: int, number: int) -> bool:
        """Say whether the effect of a sub-batch on a shard is missing in the primary copy."""
        return number > self.left.get(shard, -1)

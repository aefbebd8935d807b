"""Alignment of barriers: a receiver holds what comes behind the barrier of an input until all inputs have sent it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock

T = TypeVar("T")


class Alignment(Generic[T]):
    """The barriers of the checkpoint in progress at one receiver, and what waits behind them.

    The caller passes everything that an input sends to `admit`, in order, and handles it only if that returns True.
    What is held comes back from `released`, once the checkpoint has passed or was given up.

    Parameters
    ----------
    inputs : iterable of ExecutorId
        All upstream instances.
    make_lock : callable
        Makes the lock between the threads that bring what the inputs send.

    Attributes
    ----------
    checkpoint : int or None
        The checkpoint in progress: a barrier of it has arrived, or `begin` was called.

    Notes
    -----
    Checkpoints are numbered in the order in which they begin; a later one takes the place of one that is in progress,
    which its coordinator has given up. An input that has ended sends no barrier.

    Examples
    --------
    >>> north, south = ExecutorId("readings", 0), ExecutorId("readings", 1)
    >>> alignment = Alignment([north, south])
    >>> alignment.barrier(Barrier(north, 1)), alignment.admit(north, "behind it"), alignment.admit(south, "before it")
    (None, False, True)
    >>> alignment.barrier(Barrier(south, 1))
    1
    >>> alignment.passed(1)
    >>> list(alignment.released())
    [(ExecutorId(component='readings', index=0), 'behind it')]
    >>> alignment.admit(north, "later")
    True
    """

    def __init__(self, inputs: Iterable[ExecutorId], make_lock: MakeLock = NoLock):
        self.checkpoint: int | None = None
        self._open = set(inputs)
        # The checkpoints up to this one have passed here, or were given up.
        self._over = 0
        self._aligned = False
        self._blocked: set[ExecutorId] = set()
        # What waits, by input; an input without an entry may pass.
        self._held: dict[ExecutorId, deque[T]] = {}
        self._releasing = False
        self._lock = make_lock()

    def admit(self, origin: ExecutorId, item: T) -> bool:
        """Whether the receiver handles what an input sent now; otherwise it is held."""
        if origin not in self._held:
            # Only what the input itself sends makes it wait, and that is brought in order.
            return True
        with self._lock:
            if origin not in self._held:
                return True
            self._held[origin].append(item)
            return False

    def begin(self, checkpoint: int) -> int | None:
        """Begin a checkpoint, before the first barrier or after it.

        Returns
        -------
        int or None
            The checkpoint whose place it takes.
        """
        with self._lock:
            return self._begin(checkpoint)

    def _begin(self, checkpoint: int) -> int | None:
        before = self.checkpoint
        if checkpoint <= self._over or before == checkpoint:
            return None
        if before is not None and checkpoint < before:
            self._over = checkpoint
            return None
        if before is not None:
            self._end(before)
        self.checkpoint = checkpoint
        return before

    def barrier(self, barrier: Barrier) -> int | None:
        """Take a barrier of an input, which was admitted; returns the checkpoint if this completes its alignment.

        What comes behind it is held. The caller has called `begin` before. A barrier of a checkpoint that has passed
        here or was given up changes nothing.
        """
        with self._lock:
            self._begin(barrier.checkpoint)
            if barrier.checkpoint != self.checkpoint:
                return None
            self._blocked.add(barrier.origin)
            self._held.setdefault(barrier.origin, deque())
            return self._completed()

    def ended(self, origin: ExecutorId) -> int | None:
        """Take the end of an input, which was admitted; returns the checkpoint if this completes its alignment."""
        with self._lock:
            self._open.discard(origin)
            return self._completed()

    def completed(self) -> int | None:
        """Return the checkpoint in progress if it is aligned because all inputs have ended; each is returned once."""
        with self._lock:
            return self._completed()

    def _completed(self) -> int | None:
        if self._aligned or self._open - self._blocked:
            return None
        self._aligned = self.checkpoint is not None
        return self.checkpoint

    def passed(self, checkpoint: int) -> None:
        """End a checkpoint, which has passed the receiver or was given up: what is held may be released."""
        with self._lock:
            self._over = max(self._over, checkpoint)
            if self.checkpoint is not None and self.checkpoint <= checkpoint:
                self._end(self.checkpoint)

    def _end(self, checkpoint: int) -> None:
        self._over = max(self._over, checkpoint)
        self.checkpoint = None
        self._aligned = False
        self._blocked.clear()

    @property
    def over(self) -> int:
        """The newest checkpoint that has passed here or was given up, as all before it."""
        return self._over

    @property
    def is_active(self) -> bool:
        """Whether a checkpoint is in progress, or something that was held is not handled yet."""
        return self.checkpoint is not None or bool(self._held)

    @property
    def has_released(self) -> bool:
        """Whether to call `released`: something that was held may be handled."""
        return bool(self._held) and not self._releasing

    def released(self) -> Iterable[tuple[ExecutorId, T]]:
        """Yield what may be handled, in the order of each input; handle one before the next is taken.

        Only one thread releases at a time; for another one there is nothing. What arrives meanwhile of an input whose
        items are released is held, and released in its turn.
        """
        with self._lock:
            if self._releasing:
                return
            self._releasing = True
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> tuple[ExecutorId, T] | None:
        with self._lock:
            for origin in [origin for origin in self._held if origin not in self._blocked]:
                if self._held[origin]:
                    return origin, self._held[origin].popleft()
                del self._held[origin]
            self._releasing = False
            return None

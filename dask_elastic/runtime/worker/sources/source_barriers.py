"""The barriers of one instance of a source: it sends them between two batches, and halts behind that of a savepoint."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.identity import ExecutorId


class SourceBarriers:
    """Sends the barriers of checkpoints in the thread that sends the rows.

    Parameters
    ----------
    identity : ExecutorId
        The instance of a source.
    emit : callable
        Sends a barrier to all receivers.
    reached : callable or None
        In a job with checkpoints: called with the number of a checkpoint, the instance, and the position at which it
        has sent the barrier.
    position : callable
        Returns the position behind the rows that were sent; called by the thread that sends.
    last_position : callable
        Returns the position of an instance that has ended.
    job_ended : callable
        Returns whether the job has ended.
    """

    def __init__(
        self,
        identity: ExecutorId,
        emit: Callable[[Barrier], None],
        reached: Callable[[int, ExecutorId, SourcePosition], None] | None,
        position: Callable[[], SourcePosition],
        last_position: Callable[[], SourcePosition],
        job_ended: Callable[[], bool],
    ):
        self._identity = identity
        self._emit = emit
        self._reached = reached
        self._position = position
        self._last_position = last_position
        self._job_ended = job_ended
        # The checkpoint whose barrier is to be sent.
        self._due: int | None = None
        # Nothing leaves behind the barrier of `_halts` until `_continued` is at least that number.
        self._halts = self._continued = 0
        self._ended = False
        self._changed = threading.Condition(threading.Lock())

    def begin(self, checkpoint: int, halts: bool) -> bool:
        """Have the barrier of a checkpoint sent behind what is being sent; return False if the instance has ended.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint.
        halts : bool
            Whether nothing may leave behind the barrier, until `go_on` is called.
        """
        with self._changed:
            if not self._ended:
                # Calls may overtake each other.
                self._due = max(checkpoint, self._due or 0)
                if halts:
                    self._halts = max(checkpoint, self._halts)
                self._changed.notify()
                return True
        self._note(checkpoint, self._last_position())
        return False

    def go_on(self, checkpoint: int) -> None:
        """Continue behind the barrier of a checkpoint, also if that is still to come: calls may overtake each other."""
        with self._changed:
            self._continued = max(checkpoint, self._continued)
            self._changed.notify()

    def send_due(self) -> None:
        """Send the barrier that is due, if any; what is sent later is behind it. Blocks while the instance halts."""
        while self._due is not None:
            with self._changed:
                checkpoint, self._due = self._due, None
            if checkpoint is not None:
                self._emit(Barrier(self._identity, checkpoint))
                self._note(checkpoint, self._position())
                self._halt_behind(checkpoint)

    def _halt_behind(self, checkpoint: int) -> None:
        """Wait while nothing may leave.

        Raises
        ------
        Aborted
            If the job ends meanwhile: the caller has rows that must not leave.
        """
        with self._changed:
            while checkpoint >= self._halts > self._continued and self._due is None:
                if self._job_ended():
                    raise Aborted
                self._changed.wait()

    def wake(self) -> None:
        """Wake an instance that halts, so that it sees that the job has ended."""
        with self._changed:
            self._changed.notify()

    def end(self) -> None:
        """Note that the last row was sent; receivers need no barrier behind it."""
        with self._changed:
            checkpoint, self._ended = self._due, True
        if checkpoint is not None:
            self._note(checkpoint, self._last_position())

    def _note(self, checkpoint: int, position: SourcePosition) -> None:
        assert self._reached is not None, "checkpoints begin in jobs that take them"
        self._reached(checkpoint, self._identity, position)

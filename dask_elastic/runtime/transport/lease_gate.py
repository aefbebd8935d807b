"""The exits of a job's part: threads wait there while the coordinator's lease does not hold."""

from __future__ import annotations

import threading
import time

from dask_elastic.control.lease import Lease
from dask_elastic.runtime.transport.credit import Aborted


class LeaseGate:
    """Lets threads emit while the lease of their part holds.

    A process that was suspended, or cut off from the scheduler, may go on at any instruction. So threads check the
    lease directly before rows leave the node and before each call of a sink's writer.

    Parameters
    ----------
    needed : bool
        Whether the job needs leases: only jobs with checkpoints are restarted.

    Examples
    --------
    >>> gate = LeaseGate(needed=True)
    >>> gate.is_open
    False
    >>> gate.renew(time.monotonic(), 60.0)
    >>> gate.is_open
    True
    """

    def __init__(self, needed: bool):
        self.needed = needed
        self._lease = Lease()
        self._ended = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def is_open(self) -> bool:
        """Whether a thread may emit now."""
        # The monotonic clock counts while the process is suspended.
        return not self.needed or self._lease.holds(time.monotonic())

    def wait(self) -> None:
        """Return once the lease holds.

        Raises
        ------
        Aborted
            If the job has ended.
        """
        if self.is_open:
            return
        with self._changed:
            while not (self._ended or self.is_open):
                self._changed.wait()
        if self._ended:
            raise Aborted

    def renew(self, requested: float, seconds: float) -> None:
        """Take an answer of the scheduler.

        Parameters
        ----------
        requested : float
            The monotonic time at which the scheduler was called.
        seconds : float
            The length of the lease from then on; 0 if it is refused.
        """
        with self._changed:
            self._lease.renew(requested, seconds)
            self._changed.notify_all()

    def end(self) -> None:
        """Let threads that want to emit raise `Aborted`: the job has ended here."""
        with self._changed:
            self._ended = True
            self._lease.end()
            self._changed.notify_all()

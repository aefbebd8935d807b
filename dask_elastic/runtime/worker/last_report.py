"""The last report on a job's part: while the part is idle, it need not be made and sent again."""

from __future__ import annotations

import time
from collections.abc import Callable

from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.runtime.worker.idle_watch import IdleWatch

CHECK_SECONDS = 5.0
"""An idle part is measured this often: few of its measures can change without arrivals, such as event time."""


class LastReport:
    """Tells whether a part has to be measured again, and whether its report has to be sent.

    Parameters
    ----------
    idle_watch : IdleWatch
        Whether the part is idle.
    clock : callable
        Returns the time, seconds.

    Examples
    --------
    >>> seconds = 0.0
    >>> watch = IdleWatch(lambda: None, clock=lambda: seconds)
    >>> last = LastReport(watch, clock=lambda: seconds)
    >>> last.is_due(), last.changed(PartReport(complete=False))
    (True, PartReport(complete=False, ...))
    >>> seconds = 20.0
    >>> last.is_due(), last.changed(PartReport(complete=False))
    (True, None)
    >>> seconds = 21.0
    >>> last.is_due()
    False
    """

    def __init__(self, idle_watch: IdleWatch, clock: Callable[[], float] = time.monotonic):
        self._idle_watch = idle_watch
        self._clock = clock
        self._sent: PartReport | None = None
        self._measured_at = 0.0

    @property
    def has_backlog(self) -> bool:
        """Whether rows waited or were processed at executors here when the last report was made."""
        return self._sent is not None and any(executor.queue for executor in self._sent.executors)

    def is_due(self) -> bool:
        """Return whether to measure the part: always, but an idle part only every `CHECK_SECONDS`."""
        now = self._clock()
        if self._idle_watch.look() and self._sent is not None and now - self._measured_at < CHECK_SECONDS:
            return False
        self._measured_at = now
        return True

    def changed(self, report: PartReport) -> PartReport | None:
        """Return a report to send; None in place of an idle part's report that is equal to the last one."""
        if self._idle_watch.idle and report == self._sent:
            return None
        self._sent = report
        return report

    def lost(self) -> None:
        """Note that a report was not delivered: the next one is sent in any case."""
        self._sent = None

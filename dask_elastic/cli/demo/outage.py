"""The outage of the demonstration: one worker of each job is killed, and both jobs recover by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_elastic.cli.demo.course import WARM_UP

SETTLING = WARM_UP + 2.0
"""Seconds after the recovery that are not judged. A restarted job opens connections and learns as after its start. In
addition, it gets cores on the new worker, whose process has run none of its code, and a second's latency is measured
over two seconds."""

LONGEST_REPLACEMENT = 10.0
"""Most seconds after the recovery for which the new worker is waited for; until then, half of the slots are missing."""

LONGEST = 60.0
"""Seconds after which a job that has not recovered is considered lost."""


@dataclass
class Outage:
    """When workers were killed, and when the jobs recovered.

    Parameters
    ----------
    at_row : int
        The row of the feed at which the workers are to be killed.

    Attributes
    ----------
    began : float or None
        When they were killed; None before.
    recovered : dict of str to float
        Seconds from then until each job processed rows again.
    replaced : float or None
        Seconds from then until the elastic job had the worker that replaces the killed one; the static job, whose
        executors never move, does not use it.

    Examples
    --------
    >>> outage = Outage(at_row=500)
    >>> outage.is_due(499), outage.is_due(500)
    (False, True)
    >>> outage.begin(20.0, {"static": 1, "elastic": 1})
    >>> outage.note("elastic", 22.5, generation=2, works=True)
    True
    >>> outage.left_out
    (20.0, inf)
    >>> outage.note("static", 23.0, generation=2, works=True)
    True
    >>> outage.note_replaced(24.0)
    True
    >>> outage.left_out, outage.pause
    ((20.0, 30.0), 2.5)
    """

    at_row: int
    began: float | None = None
    recovered: dict[str, float] = field(default_factory=dict)
    replaced: float | None = None
    _generations: dict[str, int] = field(default_factory=dict)

    def is_due(self, row: int) -> bool:
        """Return whether workers are to be killed now that a row has been read."""
        return self.began is None and row >= self.at_row

    def begin(self, now: float, generations: Mapping[str, int]) -> None:
        """Note that workers are killed now, and the generation of each job before."""
        self.began = now
        self._generations = dict(generations)

    def note(self, name: str, now: float, generation: int, works: bool) -> bool:
        """Note what a job does; returns whether it has just recovered.

        Parameters
        ----------
        name : str
            The job.
        now : float
            The time, in seconds.
        generation : int
            Its generation.
        works : bool
            Whether this generation has processed rows.
        """
        if name not in self.lasting or not works or generation <= self._generations[name]:
            return False
        assert self.began is not None, "jobs last in an outage that has begun"
        self.recovered[name] = now - self.began
        return True

    def note_replaced(self, now: float) -> bool:
        """Note that the elastic job, which has recovered, has all workers; returns whether that is new."""
        if self.began is None or self.replaced is not None:
            return False
        self.replaced = now - self.began
        return True

    def is_too_long(self, now: float) -> bool:
        """Return whether a job should have recovered by now."""
        return self.began is not None and bool(self.lasting) and now - self.began > LONGEST

    @property
    def lasting(self) -> frozenset[str]:
        """The jobs that have not recovered yet."""
        return frozenset(self._generations.keys() - self.recovered.keys())

    @property
    def left_out(self) -> tuple[float, float] | None:
        """The time that is not judged, for both jobs: until both have recovered with all workers, and settled."""
        if self.began is None or self.lasting:
            return None if self.began is None else (self.began, math.inf)
        until = max(self.recovered.values())
        most = until + LONGEST_REPLACEMENT
        until = most if self.replaced is None else min(max(until, self.replaced), most)
        return self.began, self.began + until + SETTLING

    @property
    def pause(self) -> float:
        """Seconds for which no job read the feed, which ends later by as much."""
        return 0.0 if self.began is None or self.lasting else min(self.recovered.values())

"""What an upstream instance says of event time, in band with the tuples that it sends."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No tuple of `origin` behind it is older than `time`, except those that were late at their source.

    Parameters
    ----------
    origin : ExecutorId
        The instance that says so.
    time : int or None
        The oldest event time that can still come, microseconds since the epoch, the source's slack subtracted; None
        while nothing is known. It never goes back.
    idle : bool
        Whether nothing comes for now: until the next watermark nobody is to wait for this instance.

    Notes
    -----
    Enorm, section 6.2: a timestamp punctuation carries the time of the newest data that was processed minus a grace
    period. In microseconds any Arrow timestamp or date fits that a calendar has; finer ones are rounded down.
    """

    origin: ExecutorId
    time: int | None
    idle: bool = False

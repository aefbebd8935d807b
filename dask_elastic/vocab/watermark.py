"""Watermarks: the progress of event time, in band with the tuples."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No tuple that `origin` sends after it is older than `time`, except tuples that were late at their source.

    Parameters
    ----------
    origin : ExecutorId
        The upstream instance that sends it.
    time : int or None
        The oldest event time that can still arrive, in microseconds since the Unix epoch, with the source's slack
        subtracted; None until the first event time is known. It never decreases.
    idle : bool
        Whether the instance is idle: until its next watermark, receivers do not wait for it.

    Notes
    -----
    Enorm, section 6.2, where a timestamp punctuation carries the time of the newest processed data minus a grace
    period. Microseconds cover all calendar dates of Arrow's timestamps and dates; finer units are rounded down.
    """

    origin: ExecutorId
    time: int | None
    idle: bool = False

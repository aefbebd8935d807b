"""State records: control records that change state, processed in order with the rows by the task that owns a shard."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Clock: TypeAlias = Literal["event", "processing"]
"""The clocks of timers: event time advances with watermarks, processing time is that of the executor's home."""

END_OF_TIME = 2**63 - 1
"""Later than every timer, in microseconds since the Unix epoch."""

BEGINNING = -(2**62)
"""The event time that is reached while no watermark has arrived: no later than any row."""


class TimersDue(NamedTuple):
    """The timers up to a time fire.

    Parameters
    ----------
    event, processing : int or None
        The time on each clock, in microseconds since the Unix epoch; None for a clock on which no timer fires.
    last : bool
        Whether the input has ended: each timer fires once, and those that are set meanwhile are dropped.
    """

    event: int | None = None
    processing: int | None = None
    last: bool = False

    def limit(self, clock: Clock) -> int | None:
        """Return the time up to which timers of a clock fire; None if none does."""
        return self.event if clock == "event" else self.processing


class PartialsMoved(NamedTuple):
    """Partial aggregates that the earlier owner of a shard has handed over are merged; the rows are their encoding.

    Parameters
    ----------
    shard : int
        The shard.
    """

    shard: int


StateRecord: TypeAlias = TimersDue | PartialsMoved
"""Whatever changes state in order with the rows; further kinds join this union."""

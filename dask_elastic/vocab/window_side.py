"""Which instances of windows a row, or a state record, counts for while two tasks have windows of a shard."""

from __future__ import annotations

from typing import NamedTuple


class WindowSide(NamedTuple):
    """The instances of windows that begin before an event time, or those that begin at it or later.

    Parameters
    ----------
    begin : int
        The event time, in microseconds since the Unix epoch.
    later : bool
        Whether it is those that begin at this time or later.
    mixed : bool
        Of a state record, whether it meets partials of both sides, of which it may close only its own.

    Examples
    --------
    >>> WindowSide(30, later=True).of_task(mixed=True)
    WindowSide(begin=30, later=True, mixed=True)
    """

    begin: int
    later: bool
    mixed: bool = False

    def of_task(self, mixed: bool) -> WindowSide:
        """Return the same side for a task that has partials of both sides, or of one."""
        return self._replace(mixed=mixed)

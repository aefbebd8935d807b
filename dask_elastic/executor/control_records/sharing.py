"""Whether the rows of windows are added to slices or to instances, as it changes while a job runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Sharing:
    """The choice that the home of one executor stamps batches with; the caller holds the executor's lock.

    A change is for an event time, so that it is made between the same rows and records by all executors of a compute:
    before the first batch behind the record that has closed the instances up to this time. Instances that end later are
    the active ones; their results are merged from rows of either kind.

    Notes
    -----
    Enorm, section 6.2: a modification punctuation, which modifies the same active window instances on all instances of
    a component. Here it is a position in the order of the executor that each batch behind it carries.

    Examples
    --------
    >>> sharing = Sharing()
    >>> sharing.change(True, since=30)
    >>> sharing.separate(20), sharing.separate(30), sharing.separate(40)
    (False, True, True)
    >>> sharing.change(False, since=90)
    >>> sharing.planned
    False
    """

    __slots__ = ("_changes", "_separate")

    def __init__(self) -> None:
        self._separate = False
        self._changes: deque[tuple[int, bool]] = deque()

    def change(self, separate: bool, since: int | None) -> None:
        """Add rows to instances, or to slices, from a time on.

        Parameters
        ----------
        separate : bool
            Whether rows are added to a partial for each instance.
        since : int or None
            The event time, in microseconds since the Unix epoch; None for at once, in the place of earlier changes.
        """
        if since is None:
            self._changes.clear()
            self._separate = separate
        else:
            self._changes.append((since, separate))

    @property
    def planned(self) -> bool:
        """The choice that the last change makes, which may be for a later event time."""
        return self._changes[-1][1] if self._changes else self._separate

    def standing(self) -> tuple[bool, tuple[tuple[int, bool], ...]]:
        """Return the present choice, and the times and choices of changes to come."""
        return self._separate, tuple(self._changes)

    @classmethod
    def of(cls, separate: bool, changes: Iterable[tuple[int, bool]]) -> Sharing:
        """Return the inverse of `standing`.

        Examples
        --------
        >>> sharing = Sharing.of(False, [(30, True)])
        >>> sharing.separate(40), sharing.standing()
        (True, (True, ()))
        """
        sharing = cls()
        sharing._separate = separate
        sharing._changes.extend(changes)
        return sharing

    def separate(self, event_time: int | None) -> bool:
        """Return the choice for a batch that arrives now, given the event time of the last record."""
        while self._changes and event_time is not None and event_time >= self._changes[0][0]:
            _, self._separate = self._changes.popleft()
        return self._separate

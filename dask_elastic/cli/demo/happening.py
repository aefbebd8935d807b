"""What happens now: the month that is read, and changes of cores."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence

CHANGED = "the hot routes change now"


class Happening:
    """Describes what is new since the last call.

    Parameters
    ----------
    ends : sequence of int
        The number of rows that have been read at the end of each month.
    hot : sequence of bool
        Whether each month has hot routes.

    Examples
    --------
    >>> happening = Happening([100, 200], [False, True])
    >>> happening.month(0), happening.changes({"per_route": (3, 1)})
    ('January: no hot routes', '')
    >>> happening.month(150), happening.changes({"per_route": (3, 2)})
    ('February: the hot routes change now', 'per_route 3+1 → 3+2')
    >>> happening.month(160), happening.changes({"per_route": (3, 2)})
    ('', '')
    """

    def __init__(self, ends: Sequence[int], hot: Sequence[bool]):
        self._ends = ends
        self._hot = hot
        self._month: int | None = None
        self._cores: Mapping[str, tuple[int, ...]] = {}

    def month(self, rows: int) -> str:
        """Describe the month, if it is new.

        Parameters
        ----------
        rows : int
            The rows that the elastic job has read.
        """
        month = min(sum(rows >= end for end in self._ends), len(self._ends) - 1)
        # After a restart, the job reads some rows of the month before again.
        if self._month is not None and month <= self._month:
            return ""
        self._month = month
        return _month_text(month, self._hot[month])

    def changes(self, cores: Mapping[str, tuple[int, ...]]) -> str:
        """Describe how cores have changed.

        Parameters
        ----------
        cores : mapping of str to tuple of int
            The elastic job's cores of each executor, by operator.
        """
        new = [
            f"{operator} {cores_text(self._cores[operator])} → {cores_text(now)}"
            for operator, now in cores.items()
            if self._cores.get(operator, now) != now
        ]
        self._cores = dict(cores)
        return "; ".join(new)


def cores_text(cores: Sequence[int]) -> str:
    """Format the cores of an operator's executors.

    Examples
    --------
    >>> cores_text((3, 1)), cores_text((1, 1, 1, 1))
    ('3+1', '1+1+1+1')
    """
    return "+".join(map(str, cores))


def _month_text(month: int, hot: bool) -> str:
    return f"{calendar.month_name[month + 1]}: {CHANGED if hot else 'no hot routes'}"

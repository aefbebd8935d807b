"""Costs of users' functions of columns, to decide whether their columns are copied first."""

from __future__ import annotations

from collections.abc import Callable, Hashable

CHECKED_EVERY = 64
"""Evaluations on whole batches between two on copies, since functions and columns may change."""

GAIN = 0.8
"""A whole batch must take less than this part of the time, as measurements scatter."""

NEWEST_SHARE = 0.25


class FunctionCosts:
    """Decides whether a function of columns is evaluated on a whole batch, or on copies of the rows of one task.

    Parameters
    ----------
    clock : callable
        Returns the time in seconds; best that of the thread, without its waits.

    Notes
    -----
    Each task that has rows of a batch evaluates the function on the whole batch then. That is faster if the function
    reads little of wide columns. Belongs to one task.

    Examples
    --------
    >>> costs = FunctionCosts(lambda: 0.0)
    >>> costs.note_copied("length", rows=100, copying=1.0, evaluating=0.1)
    >>> costs.prefers_all("length", chosen=100, rows=200), costs.prefers_all("length", chosen=1, rows=200)
    (True, False)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self._copying: dict[Hashable, float] = {}
        self._evaluating: dict[Hashable, float] = {}
        self._calls: dict[Hashable, int] = {}

    def prefers_all(self, function: Hashable, chosen: int, rows: int) -> bool:
        """Return whether evaluating on all rows is expected to take less time than copying the chosen ones."""
        if function not in self._copying:
            return False
        calls = self._calls[function] = self._calls.get(function, 0) + 1
        copied = (self._copying[function] + self._evaluating[function]) * chosen
        return calls % CHECKED_EVERY != 0 and self._evaluating[function] * rows < GAIN * copied

    def note_copied(self, function: Hashable, rows: int, copying: float, evaluating: float) -> None:
        """Note the seconds of copying rows, and of evaluating a function on the copy."""
        _note(self._copying, function, copying / rows)
        _note(self._evaluating, function, evaluating / rows)

    def note_all(self, function: Hashable, rows: int, evaluating: float) -> None:
        """Note the seconds of evaluating a function on a whole batch."""
        _note(self._evaluating, function, evaluating / rows)


def _note(costs: dict[Hashable, float], function: Hashable, cost: float) -> None:
    before = costs.get(function, cost)
    costs[function] = before + NEWEST_SHARE * (cost - before)

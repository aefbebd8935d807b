"""Rows that operators pass on, by producer and consumer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias

Edge: TypeAlias = tuple[str, str]
"""Names of a producer and of a consumer."""


class EdgeRows:
    """Sums the rows that several threads have counted, each in a dict of its own, so that none needs a lock per batch.

    Parameters
    ----------
    lock : context manager
        Serialises the calls.

    Examples
    --------
    >>> import contextlib
    >>> edge_rows = EdgeRows(contextlib.nullcontext())
    >>> first, second = {("rows", "out"): 3}, {("rows", "out"): 4, ("rows", "late"): 1}
    >>> edge_rows.join(first)
    >>> edge_rows.join(second)
    >>> edge_rows.leave(first)
    >>> edge_rows.totals()
    {('rows', 'out'): 7, ('rows', 'late'): 1}
    """

    def __init__(self, lock: AbstractContextManager[object]):
        self._lock = lock
        self._counting: list[dict[Edge, int]] = []
        self._left: dict[Edge, int] = {}

    def join(self, rows: dict[Edge, int]) -> None:
        """Include the counts of a thread, which from now on changes no keys of its dict."""
        with self._lock:
            self._counting.append(rows)

    def leave(self, rows: dict[Edge, int]) -> None:
        """Keep the counts of a thread that has ended, and drop its dict."""
        with self._lock:
            self._counting = [one for one in self._counting if one is not rows]
            _add(self._left, [rows])

    def totals(self) -> dict[Edge, int]:
        """Return the rows so far, by edge."""
        with self._lock:
            total = dict(self._left)
            _add(total, self._counting)
        return total


def _add(total: dict[Edge, int], counts: Iterable[dict[Edge, int]]) -> None:
    for count in counts:
        for edge, rows in count.items():
            total[edge] = total.get(edge, 0) + rows

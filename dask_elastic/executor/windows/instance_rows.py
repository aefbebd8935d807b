"""The waiting rows of several keys, gathered into instances: those of windows over event time, or sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.windows.event_times import Times
from dask_elastic.executor.windows.row_instances import Bounds
from dask_elastic.state.index import Words
from dask_elastic.topology.aggregates.ragged import offsets_of

Positions = npt.NDArray[np.intp]


class Gathered(NamedTuple):
    """Instances of keys with their rows.

    Parameters
    ----------
    rows : ndarray of intp
        The rows of each instance, one instance after the other, each in the order in which they came.
    offsets : ndarray of int64
        Where those of each instance begin, and at last their number.
    starts, ends : ndarray of int64
        Begin and end of each instance.
    """

    rows: Positions
    offsets: npt.NDArray[np.int64]
    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def firsts(self) -> Positions:
        """One row of each instance."""
        found: Positions = self.rows.take(self.offsets[:-1])
        return found

    def chosen(self, which: Positions) -> Gathered:
        """Return some of the instances."""
        lengths = np.diff(self.offsets).take(which)
        offsets = offsets_of(lengths)
        shifts = self.offsets[:-1].take(which) - offsets[:-1]
        rows = self.rows.take(np.arange(int(offsets[-1])) + np.repeat(shifts, lengths))
        return Gathered(rows, offsets, self.starts.take(which), self.ends.take(which))

    def part(self, start: int, stop: int) -> Gathered:
        """Return the instances from `start` to `stop`."""
        offsets = self.offsets[start : stop + 1]
        rows = self.rows[offsets[0] : offsets[-1]]
        return Gathered(rows, offsets - offsets[0], self.starts[start:stop], self.ends[start:stop])


class InstanceRows:
    """Rows by key and the order in which they came.

    Parameters
    ----------
    begins, ends : ndarray of int64
        The bounds that an instance has to contain to take each row: what `bounds_of_spans` returns.
    numbers : ndarray of int64
        Their order: the rows of a key have different numbers.
    hashes, checks : ndarray of uint64
        The identities of their keys.

    Notes
    -----
    Instances come in the order of their ends, then begins, then the identities of keys, which no move of state changes.

    Examples
    --------
    >>> begins, keys = np.array([12, 3, 5]), np.array([7, 7, 9], np.uint64)
    >>> rows = InstanceRows(begins, begins + 1, np.array([0, 1, 2]), keys, np.zeros(3, np.uint64))
    >>> found = rows.within([(0, 10), (0, 20)])
    >>> [found.rows[low:high].tolist() for low, high in zip(found.offsets, found.offsets[1:])]
    [[1], [2], [0, 1], [2]]
    >>> rows.sessions(gap=10).starts.tolist(), rows.sessions(gap=9).starts.tolist()
    ([5, 3], [3, 5, 12])
    """

    def __init__(self, begins: Times, ends: Times, numbers: Times, hashes: Words, checks: Words) -> None:
        self._begins, self._ends = begins, ends
        self._order: Positions = np.lexsort((numbers, checks, hashes))
        ordered, checked = hashes.take(self._order), checks.take(self._order)
        opens = np.ones(len(ordered), np.bool_)
        opens[1:] = (ordered[1:] != ordered[:-1]) | (checked[1:] != checked[:-1])
        self._keys = np.cumsum(opens) - 1

    def within(self, instances: Sequence[Bounds]) -> Gathered:
        """Return the rows of instances by key; keys without rows in an instance are not in it.

        Parameters
        ----------
        instances : sequence of (int, int)
            Begin and end of each.

        Returns
        -------
        Gathered
            The instances of each key, in the order of `instances`.
        """
        begins, ends = self._begins.take(self._order), self._ends.take(self._order)
        by_time: Positions = np.argsort(begins, kind="stable")
        times = begins.take(by_time)
        # Spans that an instance needs to overlap only may begin behind its end.
        beyond = max(0, int((begins - ends).max(initial=0)))
        rows, lengths, starts, stops = [], [], [], []
        for begin, end in instances:
            inside = by_time[times.searchsorted(begin) : times.searchsorted(end + beyond, side="right")]
            inside = np.sort(inside[ends.take(inside) <= end])
            firsts = np.flatnonzero(np.diff(self._keys.take(inside), prepend=-1))
            rows.append(inside)
            lengths.append(np.diff(np.append(firsts, len(inside))))
            starts.append(np.full(len(firsts), begin))
            stops.append(np.full(len(firsts), end))
        found = self._order.take(_joined(rows))
        return Gathered(found, offsets_of(_joined(lengths)), _joined(starts), _joined(stops))

    def sessions(self, gap: int) -> Gathered:
        """Return the sessions of each key: rows of which each follows the one before within less than a gap."""
        by_key = self._keys
        begins = self._begins.take(self._order)
        chained = np.lexsort((begins, by_key))
        times, keys = begins.take(chained), by_key.take(chained)
        opens = np.ones(len(times), np.bool_)
        opens[1:] = (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] >= gap)
        firsts = np.flatnonzero(opens)
        lengths = np.diff(np.append(firsts, len(times)))
        starts, ends = times.take(firsts), times.take(firsts + lengths - 1) + gap
        of_row = np.cumsum(opens) - 1
        # Positions in the order of keys and arrival, so that a sort within a session restores the order of arrival.
        rows = self._order.take(chained.take(np.lexsort((chained, of_row))))
        found = Gathered(rows, offsets_of(lengths), starts, ends)
        return found.chosen(np.lexsort((np.arange(len(starts)), starts, ends)))


def _joined(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])

"""Rows sorted by key and time, to find those of a key whose times are in an interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Slots, Words
from dask_elastic.topology.aggregates.ragged import spans

Times = npt.NDArray[np.int64]
Described = Callable[[Slots], tuple[Slots, Words, Times]]
"""Returns which of some slots still have rows, and the hashes and times of these."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class _Run(NamedTuple):
    """Rows in the order of `words`: the upper bits are of the key's hash, the `bits` lower ones are time - `base`."""

    base: int
    bits: int
    words: Words
    slots: Slots


class SortedRows:
    """The buffered rows of one side of a join, by key and time; used by one task.

    Notes
    -----
    Rows are in several sorted runs. A run is joined with the one before once it has half as many rows, so that a row is
    sorted again log(n) times. A search costs two binary searches per key and run, and time proportional to what it
    finds, not to the rows of the key. Rows that are removed from the state stay until their run is joined with
    another.

    Examples
    --------
    >>> rows = SortedRows()
    >>> hashes, times = np.array([7, 7, 9], np.uint64), np.array([10, 20, 10])
    >>> rows.add(hashes, times, np.array([0, 1, 2]), lambda slots: (slots, hashes[slots], times[slots]))
    >>> [found.tolist() for found in rows.between(np.array([7, 9], np.uint64), np.array([15, 0]), np.array([25, 9]))]
    [[0], [1]]
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.slots) for run in self._runs)

    def add(self, hashes: Words, times: Times, slots: Slots, described: Described) -> None:
        """Add rows.

        Parameters
        ----------
        hashes : ndarray of uint64
            The hashes of their keys.
        times : ndarray of int64
            Their times.
        slots : ndarray of intp
            Their slots.
        described : callable
            Reads rows from the state when runs are joined.
        """
        if not len(slots):
            return
        self._runs.append(_sorted(hashes, times, slots))
        while len(self._runs) > 1 and len(self._runs[-2].slots) <= 2 * len(self._runs[-1].slots):
            both = np.concatenate([self._runs.pop().slots, self._runs.pop().slots])
            left, hashes_left, times_left = described(both)
            if len(left):
                self._runs.append(_sorted(hashes_left, times_left, left))

    def keep(self, chosen: Callable[[Slots], npt.NDArray[np.bool_]]) -> None:
        """Keep the rows for whose slots `chosen` returns True."""
        runs = []
        for run in self._runs:
            kept = chosen(run.slots)
            if kept.any():
                runs.append(run._replace(words=run.words[kept], slots=run.slots[kept]))
        self._runs = runs

    def between(self, hashes: Words, low: Times, high: Times) -> tuple[Slots, Slots]:
        """Find the rows of each key in an interval of times, and maybe some of other keys.

        Parameters
        ----------
        hashes : ndarray of uint64
            The hash of each key to search for.
        low, high : ndarray of int64
            The bounds, both included.

        Returns
        -------
        numbers : ndarray of intp
            For each row that was found, the position of the key in `hashes`.
        slots : ndarray of intp
            Its slot.
        """
        words = hashes * _SPREAD
        # Neighbouring searches then read the same cache lines.
        order = np.argsort(words)
        words, low, high = words[order], low[order], high[order]
        numbers, found = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
        for run in self._runs:
            upper = _upper(words, run.bits)
            most = np.int64(1) << np.int64(run.bits)
            starts = run.words.searchsorted(upper + np.clip(low - run.base, 0, most).view(np.uint64))
            stops = run.words.searchsorted(upper + np.clip(high - run.base + 1, 0, most).view(np.uint64))
            counts = stops - starts
            numbers.append(np.repeat(order, counts))
            found.append(run.slots.take(spans(starts, counts)))
        return np.concatenate(numbers), np.concatenate(found)


def _sorted(hashes: Words, times: Times, slots: Slots) -> _Run:
    base = int(times.min())
    bits = (int(times.max()) - base).bit_length()
    words = _upper(hashes * _SPREAD, bits) + (times - base).view(np.uint64)
    order = np.argsort(words)
    return _Run(base, bits, words[order], slots[order])


def _upper(words: Words, bits: int) -> Words:
    """Return words whose lower `bits` are 0; the highest bit stays free, so that a sum does not overflow."""
    upper: Words = (words >> np.uint64(bits + 1)) << np.uint64(bits)
    return upper

"""State that intervals keep of old assignments: the values summed by every dynamic program over intervals.

Goal
    From left to right, interval by interval, the most state that stays on its node.
Heuristic
    None. An interval keeps the state it shares with one old interval. Only one old interval lies across a position, so
    the rest depends only on whether that one is used already: two values for each position.
Not done
    The nodes of intervals; `dask_elastic.planning.intervals.plan.assign` assigns them once the intervals are known.

Notes
-----
State migration (Ding et al.), section 4.3: Lemmas 4.1 to 4.3 and 4.5 state the same with the two possible nodes
for a position. By erratum 2 the identities of nodes are free, and new nodes keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints

FREE, ANY = 0, 1
"""The two states of a position: the old interval across it is still free, or may be free or used."""


@dataclass(frozen=True, eq=False)
class KeptState:
    """The state that intervals keep, by the states of the positions where they begin and end.

    Parameters
    ----------
    free, any : array of float, 2 × intervals × sources
        State kept such that the old interval across the end is still free, or may be used; rows are for a start whose
        old interval is free, and for one where it may be used. Minus infinity where that is impossible.
    """

    free: Floats
    any: Floats

    @classmethod
    def of(cls, state: Floats, sources: Ints, start: Ints, end: Ints) -> KeptState:
        """Return the state that intervals keep of each of several old partitionings.

        Parameters
        ----------
        state : array of float
            The state of each task.
        sources : array of int, sources × (intervals + 1)
            The bounds of the intervals of each old partitioning.
        start, end : array of int
            The intervals, none of them empty.

        Examples
        --------
        >>> kept = KeptState.of(np.ones(6), np.array([[0, 4, 6]]), np.array([0, 1]), np.array([5, 3]))
        >>> kept.any[:, :, 0].tolist()
        [[0.0, 2.0], [4.0, 0.0]]
        """
        sums = np.append(0.0, np.cumsum(state))
        positions = np.arange(len(sums))[:, None]
        # The first bound at each position or after it, positions × sources.
        if len(sources) == 1:
            at = np.searchsorted(sources[0], positions)
        else:
            at = (sources.T[None, :, :] < positions[:, :, None]).sum(axis=1)
        source = np.arange(len(sources))[None, :]
        between = sources[source, at] != positions
        above = sums[sources[source, at]]
        below = sums[np.where(between, sources[source, at - 1], positions)]
        last = at - between
        inside = _largest(np.diff(sums[sources], axis=1), source, at[start], last[end])
        head, tail = above[start] - sums[start][:, None], sums[end][:, None] - below[end]
        within = (at[start] == at[end]) & between[end]
        whole = (sums[end] - sums[start])[:, None]
        free = np.stack([np.where(within, 0.0, head), np.where(within, -np.inf, inside)])
        any_ = np.stack([np.where(within, whole, head), np.where(within, 0.0, np.maximum(inside, tail))])
        return cls(free, any_)


def _largest(sizes: Floats, row: Ints, begin: Ints, end: Ints) -> Floats:
    """Return the largest of a row's sizes from one number up to below another, 0 where there are none."""
    length = np.maximum(end - begin, 0)
    most = int(length.max(initial=1))
    # Of all spans whose length is a power of two; any other one is covered by two of them.
    spans = [sizes]
    while 2 ** len(spans) <= most:
        half, whole = 2 ** (len(spans) - 1), spans[-1].copy()
        whole[:, :-half] = np.maximum(whole[:, :-half], spans[-1][:, half:])
        spans.append(whole)
    table = np.stack(spans)
    level = np.frexp(np.maximum(length, 1))[1] - 1
    first = np.minimum(begin, sizes.shape[1] - 1)
    second = np.clip(end - (1 << level), 0, sizes.shape[1] - 1)
    found: Floats = np.where(length > 0, np.maximum(table[level, row, first], table[level, row, second]), 0.0)
    return found

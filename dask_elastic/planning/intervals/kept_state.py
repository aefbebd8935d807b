"""What intervals can keep of old assignments: the values that every dynamic program over intervals adds up.

Goal
    From left to right, interval by interval, the most state that stays where it is.
Heuristic
    None. An interval keeps what it shares with one old interval. Only one old interval lies across a position, so all
    that the rest has to know is whether that one is used up already: two values for each position.
Not done
    Which node keeps what; `dask_elastic.planning.intervals.plan.assign` tells once the intervals are known.

Notes
-----
State migration (Ding et al.), section 4.3: Lemmas 4.1 to 4.3 and 4.5 say the same in other words, with the two possible
nodes for a position. By erratum 2 the identities of nodes are free, and new nodes keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.checked_arrays import Floats, Ints

FREE, ANY = 0, 1
"""The two states of a position: the old interval across it is still free; or it need not be."""


@dataclass(frozen=True, eq=False)
class KeptState:
    """What intervals keep, by the state of the position where they begin and of that where they end.

    Parameters
    ----------
    free, any : array of float, 2 × intervals × sources
        What is kept so that the old interval across the end is still free, or need not be; for a beginning whose old
        interval is free, and for one where it need not be. Minus infinity where that cannot be.
    """

    free: Floats
    any: Floats

    @classmethod
    def of(cls, state: Floats, sources: Ints, start: Ints, end: Ints) -> KeptState:
        """Return what intervals keep of each of several old partitionings.

        Parameters
        ----------
        state : array of float
            The state of each task.
        sources : array of int, sources × (intervals + 1)
            Where the intervals of each old partitioning begin and where the last one ends.
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
        at = (sources.T[None, :, :] < positions[:, :, None]).sum(axis=1)
        source = np.arange(len(sources))[None, :]
        between = sources[source, at] != positions
        above = sums[sources[source, at]]
        below = sums[np.where(between, sources[source, at - 1], positions)]
        last = at - between
        largest = _largest(np.diff(sums[sources], axis=1))
        inside = largest[source, at[start], last[end]]
        head, tail = above[start] - sums[start][:, None], sums[end][:, None] - below[end]
        within = (at[start] == at[end]) & between[end]
        whole = (sums[end] - sums[start])[:, None]
        free = np.stack([np.where(within, 0.0, head), np.where(within, -np.inf, inside)])
        any_ = np.stack([np.where(within, whole, head), np.where(within, 0.0, np.maximum(inside, tail))])
        return cls(free, any_)


def _largest(sizes: Floats) -> Floats:
    """Return the largest of each row's sizes from one number up to below another, 0 where there are none."""
    sources, count = sizes.shape
    numbers = np.arange(count)
    spread = np.where(numbers[:, None] <= numbers[None, :], sizes[:, None, :], 0.0)
    table = np.zeros((sources, count + 1, count + 1))
    table[:, :count, 1:] = np.maximum.accumulate(spread, axis=2)
    return table

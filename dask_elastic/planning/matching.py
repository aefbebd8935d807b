"""The matching of rows with columns that has most worth, where few pairs are worth anything.

Goal
    Sets of groups go to the bins, and intervals of tasks to the nodes, where most of their state is.
Heuristic
    None for the pairs that are worth something: an exact matching of the sparse graph. Rows without such a pair take
    the columns that are left, the first of an order with the first of another one. Of few or dense pairs the whole
    table is solved, where these orders are a small worth of each pair. SciPy holds Python's lock for milliseconds while
    it finds the matching of a large sparse graph, so the same one is found here, row by row.
Not done
    Warm starts: a matching of a thousand rows takes some milliseconds.

Notes
-----
State migration (Ding et al.), section 4.2: the assignment of intervals to nodes is a matching of a bipartite graph. Its
edges are the overlaps of intervals, of which there are about as many as nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from dask_elastic.planning.augmentation import least_cost_columns
from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.turns import in_turns, no_pause

SMALL = 1 << 16
"""Tables with fewer cells are solved as a whole."""

_SPARSE = 8
"""Others too, unless this many cells are there for each pair that is worth something."""

AT_ONCE = 1 << 20
"""Sparse matchings with fewer cells, with a column of its own for each row, are SciPy's.

SciPy holds Python's lock for 1 to 2 ms for so many with three pairs in each row, and for 7 ms with ten.
"""


def best_columns(
    row: Ints,
    column: Ints,
    worth: Floats,
    shape: tuple[int, int],
    order: tuple[Floats, Floats] | None = None,
    pause: Callable[[], None] = no_pause,
) -> tuple[Ints, Floats]:
    """Return a column of its own for each row, so that the pairs are worth most.

    Parameters
    ----------
    row, column : array of int
        The pairs that are worth something; what is worth a pair that is there several times adds up.
    worth : array of float
        What each is worth, above 0.
    shape : tuple of int
        The numbers of rows and of columns, no more rows than columns.
    order : tuple of array of float, optional
        A number for each row and each column, whose product decides between equal matchings: it is small beside what
        pairs are worth. Where the table is large it decides only about rows without a pair.
    pause : callable
        Called about every millisecond of work that holds Python's lock.

    Returns
    -------
    columns : array of int
        The column of each row.
    worths : array of float
        What each of these pairs is worth; 0 where a row has none.

    Examples
    --------
    >>> columns, worths = best_columns(np.array([0, 1, 1]), np.array([1, 1, 0]), np.array([5.0, 4.0, 3.0]), (2, 3))
    >>> columns.tolist(), worths.tolist()
    ([1, 0], [5.0, 3.0])
    """
    rows, columns = shape
    if rows * columns < max(SMALL, _SPARSE * len(row)):
        table = np.zeros(shape)
        np.add.at(table, (row, column), worth)
        small = 0.0 if order is None else order[0][:, None] * order[1][None, :]
        _, chosen = linear_sum_assignment(table + small, maximize=True)
        return chosen.astype(np.int64), table[np.arange(rows), chosen]
    pairs = csr_matrix((worth, (row, column)), shape=shape)
    chosen, worths = _sparse(pairs, pause)
    pause()
    left = np.flatnonzero(chosen < 0)
    free = np.setdiff1d(np.arange(columns), chosen)
    if order is not None:
        left = left[np.argsort(-order[0][left], kind="stable")]
        free = free[np.argsort(-order[1][free], kind="stable")]
    chosen[left] = free[: len(left)]
    return chosen, worths


def _sparse(pairs: csr_matrix, pause: Callable[[], None]) -> tuple[Ints, Floats]:
    """Return the column of each row in a matching of most worth, −1 for none, and what the pair is worth."""
    rows, columns = pairs.shape
    pairs.sum_duplicates()
    number = np.repeat(np.arange(rows), np.diff(pairs.indptr))
    # A column of its own for each row makes the matching full; equal amounts in all cells change nothing.
    base = float(pairs.data.max(initial=0.0)) or 1.0
    filled = csr_matrix(
        (
            np.append(pairs.data + base, np.full(rows, base)),
            (np.append(number, np.arange(rows)), np.append(pairs.indices, columns + np.arange(rows))),
        ),
        shape=(rows, columns + rows),
    )
    pause()
    found = _stepwise(filled, pause) if rows * (columns + rows) >= AT_ONCE else _at_once(filled)
    pause()
    chosen = np.where(found < columns, found, -1).astype(np.int64)
    taken = chosen[number] == pairs.indices
    worths = np.zeros(rows)
    worths[number[taken]] = pairs.data[taken]
    return chosen, worths


def _at_once(worths: csr_matrix) -> Ints:
    """Return the column of each row in a full matching of most worth."""
    found: Ints = min_weight_full_bipartite_matching(worths, maximize=True)[1]
    return found


def _stepwise(worths: csr_matrix, pause: Callable[[], None]) -> Ints:
    """Return the same, with pauses."""
    columns, costs = worths.indices.tolist(), (-worths.data).tolist()
    spans = in_turns(pairwise(worths.indptr.tolist()), pause)
    rows = [dict(zip(columns[begin:end], costs[begin:end], strict=True)) for begin, end in spans]
    return np.array(least_cost_columns(rows, worths.shape[1], pause), dtype=np.int64)

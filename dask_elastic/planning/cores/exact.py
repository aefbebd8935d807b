"""Optimal assignment of cores by dynamic programming, where the nodes can be filled in few ways.

Goal
    The least state moved; among assignments that move as little, one that changes few cores.
Method
    A table has the cost of each column of cores (one count per node) for each executor. Columns that cannot be part of
    a better assignment than the known one are left out. Executor by executor, the least cost is found for all numbers
    of cores left on the nodes.
Not done
    Large clusters: tables grow with the product of the nodes' cores.

Notes
-----
Elasticutor, section 4.2. By its second erratum Algorithm 1 needs a repair, or an exact search on small problems: this
is the latter, after the former.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.cores.columns import CoreColumns, Cores
from dask_elastic.planning.cores.problem import Amounts, CoreProblem

_GAIN = 1e-9
"""An assignment is better if its cost is lower by this share."""

_CHANGE = 2.0**-42
"""A tie-breaker against changed cores: a quarter of a change costs this share of all state."""

_TABLE, _PASSES = 1 << 22, 1 << 24
"""Limits of the search: entries of its tables, and entries read in all passes."""


def exact(problem: CoreProblem, intensive: NDArray[np.bool_], found: CoreColumns) -> CoreColumns:
    """Return the optimal assignment where the nodes can be filled in few ways, else the given one.

    Parameters
    ----------
    problem : CoreProblem
        The executors and the cores.
    intensive : numpy.ndarray of bool
        Whether each executor must have all cores at home.
    found : CoreColumns
        An assignment that keeps the constraints.

    Returns
    -------
    CoreColumns
        The assignment of least cost, or `found` where the limits are exceeded.
    """
    executors, nodes = range(len(problem.needed)), np.flatnonzero(problem.capacity)
    # Each node at least doubles the table.
    if len(nodes) > _TABLE.bit_length():
        return found
    left = problem.capacity[nodes]
    shape = tuple((left + 1).tolist())
    if len(executors) * (len(nodes) + 1) * math.prod(shape) > _TABLE:
        return found
    grid = np.indices(shape).reshape(len(nodes), -1)
    costs = _column_costs(problem, intensive, nodes, grid)
    least = costs.reshape(-1, *shape)
    for axis in range(1, least.ndim):
        least = np.minimum.accumulate(least, axis=axis)
    least = least.reshape(costs.shape)
    known = costs[executors, np.ravel_multi_index(tuple(found.matrix[nodes]), shape)].sum()
    bound = least[:, -1] + (known - least[:, -1].sum()) + known * _GAIN
    # A column is useful if none with fewer cores is cheaper, and if it can be part of a better assignment.
    choices = [np.flatnonzero((costs[j] <= least[j]) & (costs[j] <= bound[j])) for j in executors]
    # The first executor has all cores left and needs no pass over the grid, so it is the one with the most columns.
    order = sorted(executors, key=lambda j: (-len(choices[j]), j))
    if sum(len(choices[j]) for j in order[1:]) * math.prod(shape) > _PASSES:
        return found
    # The least cost of the remaining executors, by remaining cores.
    rest = [np.zeros(shape)]
    for j in reversed(order[1:]):
        rest.append(_with_one_more(rest[-1], grid[:, choices[j]], costs[j, choices[j]]))
    best = np.zeros(found.shape, dtype=np.int64)
    for j in order:
        columns = choices[j][(grid[:, choices[j]] <= left[:, None]).all(axis=0)]
        total = costs[j, columns] + rest.pop()[tuple(left[:, None] - grid[:, columns])]
        best[nodes, j] = grid[:, columns[int(total.argmin())]]
        left = left - best[nodes, j]
    return CoreColumns.of(best)


def _column_costs(problem: CoreProblem, intensive: NDArray[np.bool_], nodes: Cores, grid: Cores) -> Amounts:
    """Return the cost of each column for each executor: bytes moved, and a little for each changed core."""
    totals = grid.sum(axis=0)
    current = problem.columns.matrix
    parts, shares = grid / np.maximum(totals, 1), current / np.maximum(current.sum(axis=0), 1)
    lost = shares[problem.capacity == 0].sum(axis=0)
    change_cost = float(problem.state_bytes.sum()) * _CHANGE or 1.0
    costs = np.empty((len(problem.needed), grid.shape[1]))
    for j, needed in enumerate(problem.needed.tolist()):
        away, change = nodes != problem.home[j], grid - current[nodes, j][:, None]
        moved = np.maximum(shares[nodes, j][:, None] - parts, 0.0).sum(axis=0) + lost[j]
        changes = 4 * np.abs(change).sum(axis=0) + np.maximum(change[away], 0).sum(axis=0)
        costs[j] = moved * problem.state_bytes[j] + changes * change_cost
        costs[j, (totals < needed) | (intensive[j] & grid[away].any(axis=0))] = np.inf
    return costs


def _with_one_more(rest: Amounts, columns: Cores, costs: Amounts) -> Amounts:
    """Return the least cost of an executor with these columns and those after it, by remaining cores."""
    value = np.full(rest.shape, np.inf)
    for column, cost in zip(columns.T.tolist(), costs.tolist(), strict=True):
        into = value[tuple(slice(count, None) for count in column)]
        before = rest[tuple(slice(size - count) for size, count in zip(rest.shape, column, strict=True))]
        np.minimum(into, before + cost, out=into)
    return value

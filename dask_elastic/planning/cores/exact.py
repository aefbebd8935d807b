"""The best assignment of cores, by dynamic programming, where the nodes can be filled in few ways.

Goal
    The least state moved; among assignments that move as little, one that changes few cores.
Method
    Each executor has a table of what each column of cores, one count a node, would cost it. Columns that cannot be part
    of a better assignment than the one known are left out. One executor after the other, the least cost is found for
    all numbers of cores left on the nodes.
Not done
    Large clusters: tables grow with the product of the nodes' cores.

Notes
-----
Elasticutor, section 4.2. Its second erratum asks for a repair of Algorithm 1, or an exact search with a limit on small
problems: this is the latter, on top of the former.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.cores.problem import Amounts, CoreProblem, Cores

_GAIN = 1e-9
"""An assignment must cost less by this part to be better."""

_TRIFLE = 2.0**-42
"""Among assignments that cost the same, few cores shall change: such a part of all state is the price of a quarter."""

_TABLE, _PASSES = 1 << 22, 1 << 24
"""The search makes tables of no more entries than the one, and passes over no more than the other."""


def exact(problem: CoreProblem, intensive: NDArray[np.bool_], found: Cores) -> Cores:
    """Return the best assignment where the nodes can be filled in few ways, else the one that was found.

    Parameters
    ----------
    problem : CoreProblem
        What is wanted.
    intensive : numpy.ndarray of bool
        Who must have all cores at home.
    found : numpy.ndarray of int, nodes × executors
        An assignment that keeps the constraints.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        The assignment of least cost, if it could be sought.
    """
    executors, nodes = range(len(problem.needed)), np.flatnonzero(problem.capacity)
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
    known = costs[executors, np.ravel_multi_index(tuple(found[nodes]), shape)].sum()
    bound = least[:, -1] + (known - least[:, -1].sum()) + known * _GAIN
    # Of use is a column if none with fewer cores is cheaper, and if it is not too dear for a better assignment.
    choices = [np.flatnonzero((costs[j] <= least[j]) & (costs[j] <= bound[j])) for j in executors]
    # All cores are left for the first, so that it costs no pass over the grid: it is the one with the most columns.
    order = sorted(executors, key=lambda j: (-len(choices[j]), j))
    if sum(len(choices[j]) for j in order[1:]) * math.prod(shape) > _PASSES:
        return found
    # The least cost of the executors that are left, by the cores that are left.
    rest = [np.zeros(shape)]
    for j in reversed(order[1:]):
        rest.append(_with_one_more(rest[-1], grid[:, choices[j]], costs[j, choices[j]]))
    found = found.copy()
    for j in order:
        columns = choices[j][(grid[:, choices[j]] <= left[:, None]).all(axis=0)]
        total = costs[j, columns] + rest.pop()[tuple(left[:, None] - grid[:, columns])]
        found[nodes, j] = grid[:, columns[int(total.argmin())]]
        left = left - found[nodes, j]
    return found


def _column_costs(problem: CoreProblem, intensive: NDArray[np.bool_], nodes: Cores, grid: Cores) -> Amounts:
    """Return what each column of cores would cost each executor: its bytes, and a trifle for each core that changes."""
    totals = grid.sum(axis=0)
    parts, shares = grid / np.maximum(totals, 1), problem.current / np.maximum(problem.current.sum(axis=0), 1)
    lost = shares[problem.capacity == 0].sum(axis=0)
    trifle = float(problem.state_bytes.sum()) * _TRIFLE or 1.0
    costs = np.empty((len(problem.needed), grid.shape[1]))
    for j, needed in enumerate(problem.needed.tolist()):
        away, change = nodes != problem.home[j], grid - problem.current[nodes, j][:, None]
        moved = np.maximum(shares[nodes, j][:, None] - parts, 0.0).sum(axis=0) + lost[j]
        changes = 4 * np.abs(change).sum(axis=0) + np.maximum(change[away], 0).sum(axis=0)
        costs[j] = moved * problem.state_bytes[j] + changes * trifle
        costs[j, (totals < needed) | (intensive[j] & grid[away].any(axis=0))] = np.inf
    return costs


def _with_one_more(rest: Amounts, columns: Cores, costs: Amounts) -> Amounts:
    """Return the least cost by the cores left, of an executor with these columns and those after it."""
    value = np.full(rest.shape, np.inf)
    for column, cost in zip(columns.T.tolist(), costs.tolist(), strict=True):
        into = value[tuple(slice(count, None) for count in column)]
        before = rest[tuple(slice(size - count) for size, count in zip(rest.shape, column, strict=True))]
        np.minimum(into, before + cost, out=into)
    return value

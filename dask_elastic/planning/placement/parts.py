"""Communicating groups: finds pairs with much traffic, and parts of groups that move as one.

Goal
    Collocated pairs stay collocated, in parts small enough for balance and budget.
Heuristic
    A pair counts where much more traffic goes from one group to the other than to the mean downstream group. Pairs on
    one bin that share a group form a set. A set that is too heavy, or too expensive to move, is cut by balanced graph
    partitioning with little traffic between the parts; parts that are still too large are cut again.
Not done
    Parts over several bins: a set is on one bin, since its pairs are.

Notes
-----
ALBIC, section 4.3.2 (Algorithm 2, steps 1 and 2), with loads as in the fifth erratum: shares of the mean. The listing
limits the state of a part; a limit on the number of moves limits its groups in the same way.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dask_elastic.planning.placement.graph_partition import partition
from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem


def pairs(problem: PlacementProblem, score: float) -> tuple[Ints, Ints]:
    """Return the pairs on one bin, and the pairs on two bins by falling traffic.

    Parameters
    ----------
    problem : PlacementProblem
        The groups, their operators, and the traffic between them.
    score : float
        A pair counts if its traffic exceeds this multiple of the sender's mean traffic to a downstream group.

    Returns
    -------
    tuple of array of int, pairs × 2
        The pairs together and the pairs apart, sender first.

    Notes
    -----
    ALBIC, Algorithm 2, step 1: avg(g) is the traffic that g sends, divided by the number of groups of the operators
    downstream of its operator.

    Examples
    --------
    >>> traffic = [[0, 0, 8, 1], [0, 0, 2, 9], [0, 0, 0, 0], [0, 0, 0, 0]]
    >>> problem = PlacementProblem([1] * 4, [0, 0, 0, 1], 2, traffic=traffic, operator=[0, 0, 1, 1])
    >>> together, apart = pairs(problem, score=1.5)
    >>> together.tolist(), apart.tolist()
    ([[0, 2]], [[1, 3]])
    """
    return divided(problem, above(problem, score))


def divided(problem: PlacementProblem, counting: Any) -> tuple[Ints, Ints]:
    """Return the pairs that count, as `above` returns them, as `pairs` does.

    Parameters
    ----------
    problem : PlacementProblem
        The groups.
    counting : sparse matrix, groups × groups
        The traffic of the pairs that count.

    Returns
    -------
    tuple of array of int, pairs × 2
        The pairs together and the pairs apart, sender first.

    Examples
    --------
    >>> problem = PlacementProblem([1] * 3, [0, 0, 1], 2)
    >>> together, apart = divided(problem, sp.csr_matrix([[0, 5, 0], [0, 0, 2], [0, 0, 0]]))
    >>> together.tolist(), apart.tolist()
    ([[0, 1]], [[1, 2]])
    """
    problem.pause()
    counting = counting.tocoo()
    found = np.stack([counting.row, counting.col], axis=1).astype(np.int64)
    there = problem.placed[found].all(axis=1)
    problem.pause()
    same = problem.current[found[:, 0]] == problem.current[found[:, 1]]
    apart = np.flatnonzero(there & ~same)
    problem.pause()
    apart = apart[np.argsort(-counting.data[apart], kind="stable")]
    problem.pause()
    return found[there & same], found[apart]


def above(problem: PlacementProblem, score: float) -> Any:
    """Return the traffic of the pairs that count, wherever their groups are.

    Parameters
    ----------
    problem : PlacementProblem
        The groups, their operators, and the traffic between them.
    score : float
        A pair counts if its traffic exceeds this multiple of the sender's mean traffic to a downstream group.

    Returns
    -------
    sparse matrix, groups × groups
        Bytes per second; traffic of a group to itself does not count.

    Examples
    --------
    >>> traffic = [[0, 0, 8, 1], [0, 0, 2, 9], [0, 0, 0, 0], [0, 0, 0, 0]]
    >>> problem = PlacementProblem([1] * 4, [0, 0, 0, 1], 2, traffic=traffic, operator=[0, 0, 1, 1])
    >>> above(problem, score=1.5).sum()
    np.float64(17.0)
    """
    if problem.traffic is None or not problem.traffic.nnz:
        return sp.csr_matrix((problem.groups, problem.groups))
    problem.pause()
    traffic = problem.traffic.tocoo()
    mean = np.asarray(problem.traffic.sum(axis=1)).ravel() / np.maximum(_downstream(problem), 1)
    problem.pause()
    counts = (traffic.row != traffic.col) & (traffic.data > score * mean[traffic.row])
    entries = traffic.data[counts], (traffic.row[counts], traffic.col[counts])
    problem.pause()
    return sp.csr_matrix(entries, shape=traffic.shape)


def parts(problem: PlacementProblem, together: Ints, most: float, seed: int) -> Ints:
    """Return the part of each group: sets of pairs on one bin, cut for balance and budget.

    Parameters
    ----------
    problem : PlacementProblem
        The groups, and the budgets.
    together : array of int, pairs × 2
        Pairs of groups on one bin.
    most : float
        The greatest load of a part, as a share of the mean load of a bin. A single group may exceed it.
    seed : int
        The partitioner's seed.

    Returns
    -------
    array of int
        The part of each group, from 0 on; parts are numbered by their first groups.

    Notes
    -----
    ALBIC, Algorithm 2, step 2.

    Examples
    --------
    >>> traffic = np.zeros((4, 4))
    >>> traffic[0, 1] = traffic[2, 3] = 5
    >>> problem = PlacementProblem([1, 1, 1, 1], [0, 0, 1, 1], 2, traffic=traffic)
    >>> parts(problem, np.array([[0, 1], [2, 3]]), most=1.0, seed=0).tolist()
    [0, 0, 1, 1]
    >>> parts(problem, np.array([[0, 1], [2, 3]]), most=0.5, seed=0).tolist()
    [0, 1, 2, 3]
    """
    links = sp.coo_matrix((np.ones(len(together)), together.T), shape=(problem.groups, problem.groups))
    count, label = connected_components(links, directed=False)
    label = label.astype(np.int64)
    waiting = np.flatnonzero(np.bincount(label, minlength=count) > 1).tolist()
    while waiting:
        problem.pause()
        members = np.flatnonzero(label == waiting.pop())
        pieces, weight = _cut(problem, members, most)
        if pieces > 1:
            found = partition(problem.traffic, members, weight, pieces, seed, problem.pause)
            made = np.where(found == 0, label[members], count + found - 1)
            label[members] = made
            count += int(found.max())
            # The partitioner balances one weight; the other one may still be too large.
            waiting += [int(one) for one in np.unique(made) if (made == one).sum() > 1]
    problem.pause()
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    result: Ints = np.argsort(np.argsort(first))[inverse].astype(np.int64)
    return result


def contracted(problem: PlacementProblem, label: Ints) -> PlacementProblem:
    """Return the problem in which each part is one group.

    Parameters
    ----------
    problem : PlacementProblem
        The groups.
    label : array of int
        The part of each group, from 0 on; the groups of a part are on one bin.

    Returns
    -------
    PlacementProblem
        One group for each part, with the sum of loads, state and moves of its groups.

    Examples
    --------
    >>> problem = PlacementProblem([1, 2, 4], current=[0, 0, 1], bins=2, max_moves=2)
    >>> whole = contracted(problem, np.array([0, 0, 1]))
    >>> whole.load.ravel().tolist(), whole.current.tolist(), whole.size.tolist()
    ([3.0, 4.0], [0, 1], [2, 1])
    """
    problem.pause()
    count = int(label.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int64)
    first[label[::-1]] = np.arange(problem.groups)[::-1]
    loads = np.zeros((count, problem.loads.shape[1]))
    np.add.at(loads, label, problem.loads)
    return replace(
        problem,
        load=loads,
        current=problem.current[first],
        state_bytes=np.bincount(label, problem.state_bytes, minlength=count).astype(np.float64),
        size=np.bincount(label, problem.size, minlength=count).astype(np.int64),
        pinned=np.bincount(label, problem.pinned, minlength=count) > 0,
        traffic=None,
        operator=None,
        history=None,
    )


def _cut(problem: PlacementProblem, members: Ints, most: float) -> tuple[int, Floats]:
    """Return the number of parts that a set must be cut into, and the weights that exceed their limit most."""
    even = float(problem.weight.sum()) / int(problem.live.sum())
    needs = [(_ratio(float(problem.weight[members].sum()), most * even), problem.weight)]
    if problem.max_cost is not None:
        needs.append((_ratio(float(problem.state_bytes[members].sum()), problem.max_cost), problem.state_bytes))
    if problem.max_moves is not None:
        needs.append((_ratio(float(problem.size[members].sum()), problem.max_moves), problem.size.astype(float)))
    ratio, weight = max(needs, key=lambda need: need[0])
    return math.ceil(min(ratio, len(members)) * (1 - 1e-9)), weight


def _ratio(amount: float, most: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / most if most > 0 else math.inf


def _downstream(problem: PlacementProblem) -> Ints:
    """Return the number of groups downstream of each group: those of the operators that its own one sends to."""
    problem.pause()
    row, column = problem.traffic.nonzero()
    problem.pause()
    if problem.operator is None:
        # Without operators, all groups that receive traffic count.
        return np.full(problem.groups, len(np.unique(column)))
    kinds, kind = np.unique(problem.operator, return_inverse=True)
    edges = np.zeros((len(kinds), len(kinds)), dtype=np.bool_)
    edges[kind[row], kind[column]] = True
    sizes = np.bincount(kind, minlength=len(kinds))
    below = (edges @ sizes).astype(np.int64)
    result: Ints = below[kind]
    return result

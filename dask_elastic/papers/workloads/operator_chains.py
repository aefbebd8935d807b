"""A chain of operators with a share of one-to-one groups: ALBIC's setting for collocation.

Notes
-----
ALBIC, section 5.3, on the clusters of its section 5.1. The paper gives neither the topology nor the traffic. Here the
operators form a chain, and all groups send the same amount. So the share of one-to-one groups is the share of traffic
that collocation can save, apart from groups that share a node by chance. The mean load is that of the fifth erratum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dask_elastic.papers.workloads.node_loads import SIZES, Size, varied_nodes
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError

RATE = 1e6
"""Bytes per second that each group sends; only its proportions matter to planners."""


def operator_chain(
    seed: int, size: Size = SIZES[1], one_to_one: float = 0.5, max_moves: int | None = 20
) -> PlacementProblem:
    """Make a cluster whose operators form a chain.

    Parameters
    ----------
    seed : int
        Seeds loads and pairs.
    size : Size
        The size of the cluster; at least two operators.
    one_to_one : float
        The share of each operator's groups, 0 to 1, that send all traffic to one group of the next operator, each to a
        different one. The others send evenly to all groups of the next operator.
    max_moves : int, optional
        The budget.

    Returns
    -------
    PlacementProblem
        With traffic, and almost balanced.

    Raises
    ------
    PlanningError
        If the share is out of range, or there is only one operator.

    Examples
    --------
    >>> from dask_elastic.planning.placement.quality import collocation
    >>> problem = operator_chain(1, one_to_one=1.0)
    >>> problem.traffic.nnz, round(collocation(problem, problem.current), 2)
    (760, 0.02)
    """
    if not 0 <= one_to_one <= 1:
        raise PlanningError(f"one_to_one is {one_to_one!r}: give 0 to 1.")
    if size.operators < 2:
        raise PlanningError(f"{size} has one operator: a chain has at least two.")
    problem = varied_nodes(seed, size, varies=0.0, max_moves=max_moves)
    random = np.random.default_rng([seed, 1])
    each = size.groups // size.operators
    single = round(one_to_one * each)
    blocks = []
    for _ in range(size.operators - 1):
        block = np.full((each, each), RATE / each)
        senders = random.permutation(each)[:single]
        block[senders] = 0
        block[senders, random.permutation(each)[:single]] = RATE
        blocks.append(block)
    traffic = sp.lil_matrix((size.groups, size.groups))
    for number, block in enumerate(blocks):
        first = number * each
        traffic[first : first + each, first + each : first + 2 * each] = block
    return replace(problem, traffic=traffic.tocsr())

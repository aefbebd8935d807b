"""Balanced graph partitioning: cuts groups into parts of similar weight with little traffic between them.

Goal
    Parts of about the same weight, none empty, with most traffic within parts.
Heuristic
    METIS cuts in two, and each half again, until the number of parts is reached.
Not done
    Several weights at once: a caller with two weights cuts again where the other one is still too large.

Notes
-----
ALBIC, sections 4.3.2 (step 2) and 5, uses METIS; COLA is built on balanced partitioning too (section 2.1). No erratum
concerns it. A direct cut into many parts yields empty parts where weights are skewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.placement.metis import Graph, cut
from dask_elastic.planning.placement.problem import Floats, Ints
from dask_elastic.planning.turns import no_pause

_UNITS = 10_000
# Parts may exceed their share by a third, so that three pairs are halved without cutting one; packing evens out.
UNEVEN = 1.35


def partition(
    traffic: Any, members: Ints, weight: Floats, parts: int, seed: int, pause: Callable[[], None] = no_pause
) -> Ints:
    """Cut groups into parts of similar weight with little traffic between them; no part is empty.

    Parameters
    ----------
    traffic : sparse matrix or None
        Bytes per second from group to group, of all groups.
    members : array of int
        The groups to cut.
    weight : array of float
        The weight of each group, of all groups.
    parts : int
        The number of parts; fewer where there are fewer groups.
    seed : int
        The partitioner's seed.
    pause : callable
        Called about every millisecond of work.

    Returns
    -------
    array of int
        The part of each member.

    Raises
    ------
    MissingExtra
        If METIS is not installed.

    Examples
    --------
    >>> traffic = sp.csr_matrix(np.eye(4)[[1, 0, 3, 2]])
    >>> found = partition(traffic, np.arange(4), np.ones(4), 2, seed=0)
    >>> bool(found[0] == found[1]), bool(found[2] == found[3]), bool(found[0] != found[2])
    (True, True, True)
    """
    count = len(members)
    parts = min(parts, count)
    if traffic is None:
        graph = sp.csr_matrix((count, count))
    else:
        pause()
        inside = traffic[members][:, members]
        pause()
        graph = (inside + inside.T).tocsr()
    graph.setdiag(0)
    graph.eliminate_zeros()
    label = np.zeros(count, dtype=np.int64)
    uneven = UNEVEN ** (1 / max(math.ceil(math.log2(max(parts, 1))), 1))
    waiting = [(np.arange(count), 0, parts)]
    while waiting:
        pause()
        vertices, first, pieces = waiting.pop()
        if pieces >= len(vertices):
            label[vertices] = first + np.arange(len(vertices))
        elif pieces > 1:
            right = pieces // 2
            half = _halves(graph[vertices][:, vertices], weight[members[vertices]], pieces - right, right, uneven, seed)
            label[vertices[half]] = first + pieces - right
            waiting += [(vertices[~half], first, pieces - right), (vertices[half], first + pieces - right, right)]
        else:
            label[vertices] = first
    return label


def _halves(graph: Any, weight: Floats, left: int, right: int, uneven: float, seed: int) -> Any:
    """Return which vertices belong to the right half, which is later cut into `right` parts."""
    starts, neighbours = graph.indptr.astype(np.int64), graph.indices.astype(np.int64)
    rates = units(graph.data, np.zeros(graph.nnz, dtype=np.int64), 1)
    found = cut(
        Graph(starts, neighbours, units(weight, np.zeros(len(weight), dtype=np.int64), 1), rates),
        parts=2,
        seed=seed,
        uneven=uneven,
        shares=[left / (left + right), right / (left + right)],
    )
    half = found == 1
    # Each half needs a vertex for each of its parts: the lightest of the other half are added.
    for side, least in ((half, right), (~half, left)):
        missing = least - int(side.sum())
        if missing > 0:
            others = np.flatnonzero(~side)
            lightest = others[np.argsort(weight[others], kind="stable")[:missing]]
            half[lightest] = side is half
    return half


def units(values: Floats, part: Ints, parts: int) -> Ints:
    """Return weights as whole numbers of 1 or more, as METIS requires, in proportion to the greatest of their part.

    Examples
    --------
    >>> units(np.array([1.0, 2.0, 3.0]), np.array([0, 0, 1]), 2).tolist()
    [5000, 10000, 10000]
    """
    most = np.zeros(parts)
    np.maximum.at(most, part, values)
    scale = np.where(most > 0, most, 1.0)[part]
    return np.maximum(np.rint(np.where(most[part] > 0, values / scale * _UNITS, values)), 1).astype(np.int64)

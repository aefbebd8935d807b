"""Releases the cores that executors have beyond what they want: Elasticutor, section 4.2, third erratum.

Goal
    No executor has more cores than it wants, and the release moves as little state as possible.
Heuristic
    None. Remote cores are released before those at home, since a remote task sends its data over the network. Remote
    cores are released one by one where that moves least state; since each further core of a node moves more state than
    the one before, this is optimal.
Not done
    Hysteresis: the caller decides how many cores each executor keeps.

Notes
-----
Constraint (b) of section 4.2 is X ≥ k, so Algorithm 1 never frees a core, and neither does
`dask_elastic.planning.cores.assign_cores`, which only gives a surplus to other executors. An executor's last core is
never released.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.cores.columns import CoreColumns, Cores, by_node
from dask_elastic.planning.cores.problem import Amounts, amounts, counts, indices
from dask_elastic.vocab.errors import PlanningError


def release(current: ArrayLike, wanted: ArrayLike, state_bytes: ArrayLike, home: ArrayLike) -> Cores:
    """Release the cores that executors do not want.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has now.
    wanted : array of int
        Cores that each executor keeps: those it wants, and those that hysteresis allows. At least one is kept.
    state_bytes : array of float
        State of each executor, spread evenly over its cores.
    home : array of int
        Node of each executor's main process.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        An assignment in which no executor has more cores than before on any node. An executor with more cores than it
        wants has as many as it wants, at least one; the others keep what they have.

    Raises
    ------
    PlanningError
        If shapes disagree, an entry is negative or not finite, a core count is not whole, or a home is no node.

    Notes
    -----
    Elasticutor, section 4.2, with the third erratum. The state moved is `dask_elastic.planning.cores.migration_cost` of
    the change. As few cores at home as possible are released; among all ways to do that, this one moves least state.
    Nodes on which an executor loses no more than its share of the surplus lose no state. At equal loss the node with
    fewest cores of the executor gives one, so that the executor leaves whole nodes; then the one of higher number.
    Constraints (a) and (c) of section 4.2 stay fulfilled.

    Examples
    --------
    >>> release([[2, 3], [2, 0]], wanted=[2, 5], state_bytes=[8.0, 8.0], home=[0, 0]).tolist()
    [[2, 3], [0, 0]]
    """
    cores = CoreColumns.of(counts("current", current, 2))
    nodes, executors = cores.shape
    keep = counts("wanted", wanted, 1, (executors,))
    state, homes = amounts("state_bytes", state_bytes, (executors,)), indices("home", home, (executors,))
    if (homes >= nodes).any():
        raise PlanningError(f"home contains {int(homes.max())}, but the last of {nodes} nodes is {nodes - 1}.")
    return released(cores, keep, state, homes).matrix


def released(cores: CoreColumns, wanted: Cores, state_bytes: Amounts, home: Cores) -> CoreColumns:
    """Release the cores that executors do not want; see `release`.

    Parameters
    ----------
    cores : CoreColumns
        Cores that each executor has now.
    wanted : array of int
        Cores that each executor keeps. At least one is kept.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor's main process.

    Returns
    -------
    CoreColumns
        The cores that are left.
    """
    surplus = cores.totals - np.maximum(wanted, 1)
    if not (surplus > 0).any():
        return cores
    columns = {}
    for executor in np.flatnonzero(surplus > 0).tolist():
        column, place, excess = dict(cores.columns[executor]), int(home[executor]), int(surplus[executor])
        own = column.get(place, 0)
        remote = sum(column.values()) - own
        if excess < remote:
            _take_remote(column, place, excess, weighs=bool(state_bytes[executor] > 0))
        else:
            column = {place: own - (excess - remote)}
        columns[executor] = by_node(column)
    return cores.replaced(columns)


def _take_remote(column: dict[int, int], home: int, excess: int, weighs: bool) -> None:
    """Release `excess` cores on nodes other than home; `weighs` is whether the executor has state."""
    total = sum(column.values())

    def offer(node: int, taken: int, held: int) -> tuple[int, int, int, int]:
        # In units of state over total · kept, a node that loses r of its x cores loses max(0, r · total - excess · x).
        before, after = taken * total - excess * held, (taken + 1) * total - excess * held
        return (max(after, 0) - max(before, 0)) * weighs, held - taken, -node, taken

    held = {node: count for node, count in column.items() if node != home}
    heap = [offer(node, 0, count) for node, count in held.items()]
    heapify(heap)
    for _ in range(excess):
        _, left, negative, taken = heap[0]
        node = -negative
        column[node] -= 1
        if left > 1:
            heapreplace(heap, offer(node, taken + 1, held[node]))
        else:
            heappop(heap)

"""Nodes with loads that vary: the settings of ALBIC's solver experiments.

Notes
-----
ALBIC, sections 5.1 and 5.3. Load is a percentage of a node; the paper does not give its mean, which is 50 here (fifth
erratum).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class Size:
    """The size of a cluster and its job.

    Parameters
    ----------
    nodes, groups, operators : int
        Their numbers. All operators have the same number of groups, and so do all nodes.

    Raises
    ------
    PlanningError
        If the groups cannot be distributed evenly.
    """

    nodes: int = 20
    groups: int = 400
    operators: int = 10

    def __post_init__(self) -> None:
        if min(self.nodes, self.groups, self.operators) < 1 or self.groups % self.nodes or self.groups % self.operators:
            raise PlanningError(
                f"{self} cannot be distributed evenly: give groups as a multiple of nodes and operators."
            )

    @property
    def current(self) -> Ints:
        """The initial node of each group: the groups of each operator are placed round-robin."""
        return np.arange(self.groups) % self.nodes

    @property
    def operator(self) -> Ints:
        """The operator of each group."""
        return np.arange(self.groups) // (self.groups // self.operators)


SIZES = (Size(20, 400, 10), Size(40, 800, 20), Size(60, 1200, 30))
"""The clusters of ALBIC's figures 2, 3 and 4, which are those of figure 11."""

_MEAN = 50.0
_JITTER = 0.05
_VARIED = 0.2


def varied_nodes(
    seed: int, size: Size = SIZES[0], varies: float = 40.0, max_moves: int | None = None
) -> PlacementProblem:
    """Make a cluster in which one fifth of the nodes has more or less load than the others.

    Parameters
    ----------
    seed : int
        Seeds the loads.
    size : Size
        The size of the cluster.
    varies : float
        The difference in load points between the two halves of the varied nodes, 0 to 95: one half has ``varies / 2``
        points less load than the other nodes, the other half ``varies / 2`` points more.
    max_moves : int, optional
        The budget.

    Returns
    -------
    PlacementProblem
        Loads are percentages of a node; state is 1 for each group, so that the cost counts groups.

    Raises
    ------
    PlanningError
        If `varies` is out of range.

    Notes
    -----
    ALBIC, section 5.1: each group has the mean load, ± 5 % at random, and on a fifth of the nodes the load
    of a random set of groups is changed. The paper does not give the size of that set: here at least half of a node's
    groups, and enough for the change.

    Examples
    --------
    >>> problem = varied_nodes(1, varies=40.0, max_moves=10)
    >>> problem.groups, problem.bins, sorted(problem.shares(problem.current).round(-1))[::19]
    (400, 20, [np.float64(30.0), np.float64(70.0)])
    """
    if not 0 <= varies <= 95:
        raise PlanningError(f"varies is {varies!r}: give 0 to 95 points, since a node has {_MEAN:g} on average.")
    random = np.random.default_rng(seed)
    current = size.current
    load = _MEAN * size.nodes / size.groups * (1 + random.uniform(-_JITTER, _JITTER, size.groups))
    chosen = random.permutation(size.nodes)[: round(_VARIED * size.nodes)]
    for number, node in enumerate(chosen.tolist()):
        _change(random, load, np.flatnonzero(current == node), (0.5 if number % 2 else -0.5) * varies)
    return _problem(size, load, max_moves)


def scale_in(
    seed: int, size: Size = SIZES[2], leaving: int = 10, overloaded: int = 1, max_moves: int | None = 20
) -> PlacementProblem:
    """Make a cluster in which some nodes are draining while others are full.

    Parameters
    ----------
    seed : int
        Seeds the loads and the nodes.
    size : Size
        The size of the cluster.
    leaving : int
        The number of draining nodes.
    overloaded : int
        The number of other nodes with a load of 100.
    max_moves : int, optional
        The budget of a period.

    Raises
    ------
    PlanningError
        If no node remains, or `leaving` and `overloaded` exceed the number of nodes.

    Notes
    -----
    ALBIC, section 5.1, figure 5.

    Examples
    --------
    >>> problem = scale_in(1, overloaded=5)
    >>> int(problem.draining.sum()), int((problem.shares(problem.current) > 99).sum())
    (10, 5)
    """
    if min(leaving, overloaded) < 0 or leaving >= size.nodes or leaving + overloaded > size.nodes:
        raise PlanningError(
            f"{leaving} nodes are draining and {overloaded} others are full, of {size.nodes} nodes: one must stay."
        )
    random = np.random.default_rng(seed)
    load = _MEAN * size.nodes / size.groups * (1 + random.uniform(-_JITTER, _JITTER, size.groups))
    nodes = random.permutation(size.nodes)
    for node in nodes[leaving : leaving + overloaded].tolist():
        here = size.current == node
        load[here] *= 100 / load[here].sum()
    return replace(_problem(size, load, max_moves), draining=np.isin(np.arange(size.nodes), nodes[:leaving]))


def drifted(problem: PlacementProblem, seed: int, nodes: float = 0.2, most: float = 0.02) -> PlacementProblem:
    """Change the load of some nodes a little.

    Parameters
    ----------
    problem : PlacementProblem
        The cluster in the period before.
    seed : int
        Seeds nodes and changes.
    nodes : float
        The share of the nodes that change.
    most : float
        The greatest relative change of a node's load, up or down.

    Returns
    -------
    PlacementProblem
        The same groups on the same nodes.

    Notes
    -----
    ALBIC, section 5.3: a fifth of the nodes, by up to 2 %, before each time the problem is solved.

    Examples
    --------
    >>> problem = varied_nodes(1)
    >>> change = drifted(problem, 2).shares(problem.current) / problem.shares(problem.current)
    >>> int((change != 1).sum()), bool(abs(change - 1).max() <= 0.02)
    (4, True)
    """
    random = np.random.default_rng(seed)
    chosen = random.permutation(problem.bins)[: round(nodes * problem.bins)]
    factor = np.ones(problem.bins + 1)
    factor[chosen] += random.uniform(-most, most, len(chosen))
    # New groups get the last factor, which is 1.
    change = factor[problem.current]
    return replace(problem, load=problem.load * (change if problem.load.ndim == 1 else change[:, None]))


def _problem(size: Size, load: Floats, max_moves: int | None) -> PlacementProblem:
    return PlacementProblem(
        load, size.current, size.nodes, np.ones(size.groups), operator=size.operator, max_moves=max_moves
    )


def _change(random: np.random.Generator, load: Floats, groups: Ints, points: float) -> None:
    """Add points to the load of a random set of groups, in proportion; no load falls below 0."""
    order = random.permutation(groups)
    enough = int(np.searchsorted(np.cumsum(load[order]), -points)) + 1
    least = min(max(len(order) // 2, enough, 1), len(order))
    some = order[: int(random.integers(least, len(order) + 1))]
    load[some] *= max(1 + points / load[some].sum(), 0.0)

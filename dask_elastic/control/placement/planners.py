"""The planners of homes, with the options that suit executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dask_elastic.control.placement.choices import kind_of_placement, planner_name
from dask_elastic.control.placement.consecutive import consecutive_placement
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.placement.eager import Eager
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.planning.planner import Planner
from dask_elastic.planning.registry import check_extra, planner

SEARCHING = frozenset({"albic", "milp"})
"""Planners that search."""

SEARCH_SECONDS = 2.0
MOST_SEARCHED, LEAST_SEARCHED = 200, 20
"""Nodes of a search for small and for large problems: few, so that the answer is the same on any machine."""

SEARCHED_GROUPS = 100_000
"""Nodes of a search times groups, between these bounds: a node takes the longer, the more groups there are."""

PlacementPlanning = Planner[PlacementProblem, Placement]
"""A planner that answers a placement problem, of whichever kind its own problem is."""


def home_planner(placement: str, least_gain: float = 0.0) -> PlacementPlanning:
    """Return the planner of a placement.

    Parameters
    ----------
    placement : str
        The name of the placement, not ``"spread"``. One with consecutive executors needs `Consecutive`.
    least_gain : float
        Planners do not search where a plan cannot gain as much balance, as a share of the mean load.

    Returns
    -------
    Planner
        A planner of placement problems.

    Raises
    ------
    MissingExtra
        If the planner needs a solver that is not installed.

    Examples
    --------
    >>> home_planner("flux")
    Flux(passes=None)
    """
    name = planner_name(placement)
    if name in SEARCHING:
        check_extra(name)
        return BriefSearch(name, least_gain)
    return WideEager() if name == "eager" else planner(name, "placement")


@dataclass(frozen=True)
class BriefSearch:
    """A planner that searches, with a limit that depends on the size of the problem.

    Parameters
    ----------
    name : str
        The name of the planner.
    least_gain : float
        A share of the mean load: nothing is searched where no plan within the budget gains as much balance.

    Notes
    -----
    ALBIC, section 4.3.1, limits the time of the solver; a limit of nodes gives the same answer on any machine.

    Examples
    --------
    >>> BriefSearch.nodes(100), BriefSearch.nodes(2_000), BriefSearch.nodes(50_000)
    (200, 50, 20)
    """

    name: str
    least_gain: float = 0.0

    @staticmethod
    def nodes(groups: int) -> int:
        """Return the nodes of a search for a problem with so many groups."""
        return min(max(SEARCHED_GROUPS // max(groups, 1), LEAST_SEARCHED), MOST_SEARCHED)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement."""
        nodes = self.nodes(problem.groups)
        limits = {"time_limit": SEARCH_SECONDS, "node_limit": nodes, "least_gain": self.least_gain}
        if self.name == "albic":
            # Those with the most traffic come first.
            limits["pair_limit"] = nodes
        found: Placement = planner(self.name, "placement", **limits).plan(problem, seed)
        return found


@dataclass(frozen=True)
class WideEager:
    """ELB with a range of load that is as wide as executors require.

    Notes
    -----
    ELB/CLB, section 3: a group larger than half the width of the range never moves. Executors are few and large, so the
    range is the mean load and what an executor adds to a node on the average, or a tenth of the mean if that is more.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1, 1], current=[0, 0, 0, 0], bins=2)
    >>> WideEager().plan(problem).bin.tolist(), Eager().plan(problem).moves
    ([1, 1, 0, 0], 0)
    """

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement; the seed is ignored."""
        mean = problem.mean
        if mean <= 0:
            return Eager().plan(problem, seed)
        loaded = problem.weight[problem.weight > 0]
        half = min(max(0.1 * mean, float(loaded.mean() / problem.strength.mean()) * (1 + 1e-6)), mean)
        return Eager(mean - half, mean + half).plan(problem, seed)


@dataclass
class Consecutive:
    """The planners of consecutive executors, as a planner of placement problems.

    Parameters
    ----------
    placement : str
        The name of the placement.
    node_counts : sequence of int
        The numbers of nodes in earlier periods, oldest first; its owner adds to it.
    settings : PlacementSettings
        τ and the discount.

    Attributes
    ----------
    own : int
        The number of groups that are executors of the job; set before each plan.

    Examples
    --------
    >>> planning = Consecutive("ssm", [2], PlacementSettings())
    >>> planning.own = 4
    >>> problem = PlacementProblem([1, 1, 1, 1], current=[0, 0, 0, 0], bins=2, state_bytes=[9, 1, 1, 1])
    >>> planning.plan(problem).bin.tolist()
    [0, 0, 1, 1]
    """

    placement: str
    node_counts: Sequence[int]
    settings: PlacementSettings
    own: int = field(default=0, init=False)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement; the seed is ignored."""
        return consecutive_placement(self.placement, problem, self.own, self.node_counts, self.settings)


def planner_of_job(placement: str, node_counts: Sequence[int], settings: PlacementSettings) -> PlacementPlanning:
    """Return the planner of the homes of a running job.

    Parameters
    ----------
    placement : str
        The name of the placement, not ``"spread"``.
    node_counts : sequence of int
        The numbers of nodes in earlier periods, oldest first.
    settings : PlacementSettings
        The settings of the placement loop.

    Returns
    -------
    Planner
        A planner of placement problems.

    Examples
    --------
    >>> planner_of_job("mtm", [], PlacementSettings()).placement
    'mtm'
    """
    if kind_of_placement(placement) == "placement":
        return home_planner(placement, settings.least_gain)
    return Consecutive(placement, node_counts, settings)

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
from dask_elastic.planning.registry import planner

LIMITS: dict[str, dict[str, float]] = {
    "albic": {"time_limit": 2.0, "node_limit": 200},
    "milp": {"time_limit": 2.0, "node_limit": 200},
}
"""Options of planners that search: few nodes, so that the answer is the same on any machine, and a limit of time."""

PlacementPlanning = Planner[PlacementProblem, Placement]
"""A planner that answers a placement problem, of whichever kind its own problem is."""


def home_planner(placement: str) -> PlacementPlanning:
    """Return the planner of a placement.

    Parameters
    ----------
    placement : str
        The name of the placement, not ``"spread"``. One with consecutive executors needs `Consecutive`.

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
    return WideEager() if name == "eager" else planner(name, "placement", **LIMITS.get(name, {}))


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
        return home_planner(placement)
    return Consecutive(placement, node_counts, settings)

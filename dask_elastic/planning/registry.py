"""The planners by name.

Goal
    One way to get any planner, with its options checked before there is a problem to plan.
Heuristic
    None.
Not done
    Planners of other packages: whoever writes one passes the object itself to whatever takes a `Planner`.

Notes
-----
ALBIC, sections 4 and 5 (the solver, Flux); ELB/CLB, sections 3 to 5; State migration, section 6 (baselines). Where
those are wrong or silent, each planner's own page names the erratum and tells what it does instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Protocol

from dask_elastic.planning.placement.albic import Albic
from dask_elastic.planning.placement.cola import Cola
from dask_elastic.planning.placement.consistent_hash import ConsistentHash
from dask_elastic.planning.placement.correlation import Correlation
from dask_elastic.planning.placement.eager import Eager
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.redist import Redist
from dask_elastic.planning.placement.storm import Storm
from dask_elastic.planning.placement.universal_hash import UniversalHash
from dask_elastic.vocab.errors import PlanningError, UnknownPlanner


class Planner(Protocol):
    """What every planner can do.

    Notes
    -----
    A planner is a value: its answer follows from the problem and the seed alone. Its answers pass
    `dask_elastic.planning.placement.check.validate`, and are never worse than staying for its own objective, unless
    they empty draining bins. `dask_elastic.testing.planners` is a kit that judges one; what a planner cannot keep,
    it names there by the attributes ``gradual`` and ``by_number``.
    """

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement for the problem."""
        ...

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what the planner minimises, most important number first."""
        ...


_PLANNERS: dict[str, Callable[..., Planner]] = {
    "albic": Albic,
    "cola": Cola,
    "consistent-hash": ConsistentHash,
    "correlation": Correlation,
    "eager": Eager,
    "flux": Flux,
    "milp": Milp,
    "redist": Redist,
    "storm": Storm,
    "universal-hash": UniversalHash,
}


def names() -> tuple[str, ...]:
    """Return the names of all planners, in alphabetical order."""
    return tuple(sorted(_PLANNERS))


def planner(name: str, **options: Any) -> Planner:
    """Return the planner of that name.

    Parameters
    ----------
    name : str
        One of `names()`.
    **options
        What that planner can be told; its class documents it.

    Returns
    -------
    Planner
        An object with a method ``plan(problem, seed=0)``.

    Raises
    ------
    UnknownPlanner
        If no planner has that name.
    PlanningError
        If the planner has no such option, or the value is out of range.

    Examples
    --------
    >>> planner("flux", passes=1)
    Flux(passes=1)
    """
    kind: Any = _PLANNERS.get(name)
    if kind is None:
        raise UnknownPlanner(f"no planner is named {name!r}: choose one of {', '.join(names())}.")
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            raise PlanningError(f"planner {name!r} has no option {option!r}: it has {', '.join(known) or 'none'}.")
    made: Planner = kind(**options)
    return made

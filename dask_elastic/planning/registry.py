"""All planners by name: of cores, placements and intervals.

Goal
    One way to get any planner, with its options checked before there is a problem to plan.
Heuristic
    None. A planner's module is imported when the planner is made, so that the names cost no import.
Not done
    Planners of other packages: pass the object itself to what takes a `Planner`.

Notes
-----
Elasticutor, sections 4.2 and 5; ALBIC, sections 4 and 5 (the solver, Flux); ELB/CLB, sections 3 to 5; State migration,
sections 4 to 6. Where a paper is wrong or silent, the planner's module names the erratum and what it does instead.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

from dask_elastic.planning.extras import require
from dask_elastic.planning.planner import Planner
from dask_elastic.vocab.errors import PlanningError, UnknownPlanner

if TYPE_CHECKING:
    from dask_elastic.planning.cores.planner import CorePlanner
    from dask_elastic.planning.placement.planner import PlacementPlanner

Kind: TypeAlias = Literal["cores", "placement", "intervals", "sequence"]
"""What a planner takes: a `CoreProblem`, `PlacementProblem`, `IntervalProblem` or `SequenceProblem`."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class _Entry:
    """Where a planner is, and the modules of the extra ``planners`` that it needs."""

    kind: Kind
    module: str
    name: str
    needs: tuple[str, ...] = ()


_PLANNERS: dict[str, _Entry] = {
    "albic": _Entry("placement", "albic", "Albic", ("highspy", "pymetis")),
    "cola": _Entry("placement", "cola", "Cola", ("pymetis",)),
    "consistent-hash": _Entry("placement", "consistent_hash", "ConsistentHash"),
    "correlation": _Entry("placement", "correlation", "Correlation"),
    "eager": _Entry("placement", "eager", "Eager"),
    "elasticutor": _Entry("cores", "elasticutor", "Elasticutor"),
    "flux": _Entry("placement", "flux", "Flux"),
    "milp": _Entry("placement", "milp", "Milp", ("highspy",)),
    "naive": _Entry("cores", "naive", "Naive"),
    "redist": _Entry("placement", "redist", "Redist"),
    "sequence": _Entry("sequence", "planners", "OptimalSequence"),
    "single-step": _Entry("intervals", "planners", "SingleStep"),
    "storm": _Entry("placement", "storm", "Storm"),
    "transition-aware": _Entry("intervals", "planners", "TransitionAware"),
    "universal-hash": _Entry("placement", "universal_hash", "UniversalHash"),
}
_PACKAGES: dict[Kind, str] = {
    "cores": "dask_elastic.planning.cores",
    "placement": "dask_elastic.planning.placement",
    "intervals": "dask_elastic.planning.intervals",
    "sequence": "dask_elastic.planning.intervals",
}


def names(kind: Kind | None = None) -> tuple[str, ...]:
    """Return the names of planners, in alphabetical order.

    Parameters
    ----------
    kind : {"cores", "placement", "intervals", "sequence"}, optional
        Only planners of this kind of problem; all if left out.

    Returns
    -------
    tuple of str
        The names, also of planners whose extra is not installed.

    Examples
    --------
    >>> names("cores")
    ('elasticutor', 'naive')
    """
    return tuple(sorted(name for name, entry in _PLANNERS.items() if kind in (None, entry.kind)))


def kind_of(name: str) -> Kind:
    """Return the kind of problem that a planner takes.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    {"cores", "placement", "intervals", "sequence"}
        The kind.

    Raises
    ------
    UnknownPlanner
        If no planner has that name.

    Examples
    --------
    >>> kind_of("milp")
    'placement'
    """
    return _entry(name, None).kind


def check_extra(name: str) -> None:
    """Check that what a planner needs is installed.

    Parameters
    ----------
    name : str
        One of `names()`.

    Raises
    ------
    UnknownPlanner
        If no planner has that name.
    MissingExtra
        If the planner needs a solver that is not installed.

    Examples
    --------
    >>> check_extra("flux")
    """
    for module in _entry(name, None).needs:
        require(module, f"planner {name!r}")


@overload
def planner(name: str, kind: None = None, /, **options: Any) -> Planner[Any, Any]: ...


@overload
def planner(name: str, kind: Literal["cores"], /, **options: Any) -> CorePlanner: ...


@overload
def planner(name: str, kind: Literal["placement"], /, **options: Any) -> PlacementPlanner: ...


@overload
def planner(name: str, kind: Literal["intervals", "sequence"], /, **options: Any) -> Planner[Any, Any]: ...


def planner(name: str, kind: Kind | None = None, /, **options: Any) -> Any:
    """Return the planner of that name.

    Parameters
    ----------
    name : str
        One of `names()`.
    kind : {"cores", "placement", "intervals", "sequence"}, optional
        Refuse planners of another kind of problem.
    **options
        The planner's options; its class documents them.

    Returns
    -------
    Planner
        An object with a method ``plan(problem, seed=0)``.

    Raises
    ------
    UnknownPlanner
        If no planner of that kind has that name.
    MissingExtra
        If the planner needs a solver that is not installed.
    PlanningError
        If the planner has no such option, an option is missing, or its value is out of range.

    Examples
    --------
    >>> planner("flux", passes=1)
    Flux(passes=1)
    >>> planner("elastikutor", "cores")
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.UnknownPlanner: no planner of kind 'cores' is named 'elastikutor': choose one of
    elasticutor, naive; did you mean 'elasticutor'?
    """
    entry = _entry(name, kind)
    check_extra(name)
    made: Any = getattr(import_module(f"{_PACKAGES[entry.kind]}.{entry.module}"), entry.name)
    known = {field.name: field for field in fields(made)}
    for option in options:
        if option not in known:
            raise PlanningError(f"planner {name!r} has no option {option!r}: it has {', '.join(known) or 'none'}.")
    for option, field in known.items():
        if option not in options and field.default is MISSING and field.default_factory is MISSING:
            raise PlanningError(f"planner {name!r} needs the option {option!r}: its class documents it.")
    return made(**options)


def _entry(name: str, kind: Kind | None) -> _Entry:
    entry = _PLANNERS.get(name)
    if entry is None or kind not in (None, entry.kind):
        known = names(kind)
        near = get_close_matches(name, known, 1, 0.0)[0]
        what = f"no planner of kind {kind!r}" if kind else "no planner"
        raise UnknownPlanner(f"{what} is named {name!r}: choose one of {', '.join(known)}; did you mean {near!r}?")
    return entry

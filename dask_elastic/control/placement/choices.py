"""The placements that a job may choose, by the names of the papers and of the planners."""

from __future__ import annotations

from dask_elastic.planning.registry import Kind, check_extra, kind_of, names

SPREAD = "spread"
"""Homes on the nodes with the most free slots, where they then stay."""

ALIASES = {
    "clb": "correlation",
    "elb": "eager",
    "mtm": "transition-aware",
    "oms": "sequence",
    "ssm": "single-step",
}
"""Planners by the abbreviations of their papers."""

PLACEMENTS = (SPREAD, *sorted({*names("placement"), *ALIASES}))
"""What `submit` accepts as ``placement=``."""


def planner_name(placement: str) -> str:
    """Return the name of the planner of a placement, as the registry has it.

    Parameters
    ----------
    placement : str
        One of `PLACEMENTS`, but not ``"spread"``, which has no planner.

    Returns
    -------
    str
        The name.

    Examples
    --------
    >>> planner_name("ssm"), planner_name("albic")
    ('single-step', 'albic')
    """
    return ALIASES.get(placement, placement)


def kind_of_placement(placement: str) -> Kind:
    """Return what kind of problem the planner of a placement solves.

    Parameters
    ----------
    placement : str
        One of `PLACEMENTS`, but not ``"spread"``.

    Returns
    -------
    {"placement", "intervals", "sequence"}
        The kind. With the last two, each node is the home of consecutive executors.

    Examples
    --------
    >>> kind_of_placement("elb"), kind_of_placement("mtm")
    ('placement', 'intervals')
    """
    return kind_of(planner_name(placement))


def check_installed(placement: str) -> None:
    """Check that the solver that a placement needs is installed here.

    Parameters
    ----------
    placement : str
        One of `PLACEMENTS`.

    Raises
    ------
    MissingExtra
        Names the extra to install.

    Examples
    --------
    >>> check_installed("flux")
    """
    if placement != SPREAD:
        check_extra(planner_name(placement))

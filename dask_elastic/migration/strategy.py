"""Strategies of shard moves between nodes.

Notes
-----
Decisions 75 and 80; Enorm, section 4.5.

- *labelled*: a shard pauses until the source has finished its rows and the target has its state.
- *instant*: the target begins without the state of open windows, which follows and is merged.
- *smooth*: the source keeps the windows that have begun until they close, the target begins with the next ones.
- *disruptive*: source and target process nothing until the target has the state; a baseline.
- *auto*: each move by the strategy that is expected to delay rows least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dask_elastic.migration.group_move import PROGRESSIVE, SYNCHRONISED
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.errors import SubmitError

LABELLED = "labelled"
INSTANT = "instant"
SMOOTH = "smooth"
DISRUPTIVE = "disruptive"
AUTO = "auto"

STRATEGIES = (LABELLED, INSTANT, SMOOTH, DISRUPTIVE, AUTO)
"""How the shards of a component move between nodes; within a node they always move by labels."""

MERGING = (INSTANT, SMOOTH)
"""Strategies by which the partials of a shard may have to be merged."""

MERGING_AT_TIMES = (*MERGING, AUTO)
"""Strategies by which partials travel between tasks in some moves."""

DIVIDING = (SMOOTH, AUTO)
"""Strategies by which two tasks may have windows of a shard."""

BETWEEN_EXECUTORS = (PROGRESSIVE, SYNCHRONISED)
"""How key groups move from one executor to another, see `dask_elastic.migration.group_move`."""

GROUP_STRATEGIES = (*BETWEEN_EXECUTORS, AUTO)
"""What a job whose key groups move may choose; with the last one, each plan has the cheaper of the others."""


def check_names(named: Iterable[str], computes: Collection[str], fused: Collection[str] = ()) -> None:
    """Check that strategies are given for computes that have tasks of their own.

    Parameters
    ----------
    named : iterable of str
        The computes for which a strategy is given.
    computes, fused : collection of str
        The computes with tasks of their own, and those that run in the tasks of others.

    Raises
    ------
    SubmitError
        Naming the one that is none.

    Examples
    --------
    >>> check_names(["hott"], ["hot", "cold"])
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: migration names 'hott', but the computes are 'cold' and 'hot'
    """
    for name in named:
        if name in fused:
            raise SubmitError(
                f"migration names {name!r}, which runs in the tasks of another compute, whose states move together: "
                "name that compute, or pass fuse=False"
            )
        if name not in computes:
            known = " and ".join(map(repr, sorted(computes))) or "none"
            raise SubmitError(f"migration names {name!r}, but the computes are {known}")


def check_strategy(strategy: str, computes: Iterable[Compute], fused: Iterable[Compute] = ()) -> None:
    """Check that the shards of computes can move by a strategy; called when a job is submitted.

    Parameters
    ----------
    strategy : str
        The strategy of these computes.
    computes : iterable of Compute
        The stateful operators that have tasks of their own.
    fused : iterable of Compute
        Those that run in the tasks of these.

    Raises
    ------
    SubmitError
        If there is no such strategy, or it merges partials and an operator cannot; names the operator.

    Examples
    --------
    >>> check_strategy("progressive", [])
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: migration='progressive' moves key groups between executors, ...
    """
    names = ", ".join(map(repr, STRATEGIES))
    if strategy in BETWEEN_EXECUTORS:
        raise SubmitError(
            f"migration={strategy!r} moves key groups between executors, which have one core each then: pass "
            f"paradigm='resource-centric', or choose from {names}"
        )
    if strategy not in STRATEGIES:
        raise SubmitError(f"migration={strategy!r}: choose from {names}")
    if strategy not in MERGING:
        return
    if behind := [one.name for one in fused]:
        raise SubmitError(
            f"migration={strategy!r}, but {', '.join(map(repr, behind))} runs in the tasks of another compute, whose "
            "states move together: pass fuse=False, or migration='labelled'."
        )
    for compute in computes:
        if (reason := unmerged(compute)) is not None:
            raise SubmitError(
                f"migration={strategy!r}, but {compute.name!r} {reason}, so partial state of its shards cannot be "
                "merged: pass migration='labelled'."
            )


def check_group_strategy(strategy: str) -> None:
    """Check how the key groups of computes are to move between executors; called when a job is submitted.

    Raises
    ------
    SubmitError
        If there is no such strategy.

    Examples
    --------
    >>> check_group_strategy("smooth")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: migration='smooth' moves shards between the cores of one executor: ...
    """
    if strategy not in GROUP_STRATEGIES:
        names = " or ".join(map(repr, GROUP_STRATEGIES))
        if strategy not in STRATEGIES:
            raise SubmitError(f"migration={strategy!r}: with paradigm='resource-centric' choose {names}")
        raise SubmitError(
            f"migration={strategy!r} moves shards between the cores of one executor: with "
            f"paradigm='resource-centric' pass {names}"
        )


def unmerged(compute: Compute) -> str | None:
    """Return why the partial state of a compute cannot be merged, as the rest of a sentence; None if it can."""
    windowing = compute.windowing
    if compute.join is not None:
        return "is a join"
    if windowing is None:
        return "has no windows"
    if compute.aggregates is None:
        return "runs a function over its windows"
    if not all(isinstance(window, EventWindow) for window in windowing.windows):
        return f"has windows that are no fixed spans of event time, {windowing}"
    if windowing.revised:
        return "corrects results, or emits them before windows close (allowed_lateness, emit='updates')"
    return None

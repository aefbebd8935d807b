"""Strategies of shard moves between nodes.

Notes
-----
Decision 75; Enorm, section 4.5.

- *labelled*: a shard pauses until the source has finished its rows and the target has its state.
- *instant*: the target begins without the state of open windows, which follows and is merged.
- *disruptive*: source and target process nothing until the target has the state; a baseline.
"""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.errors import SubmitError

LABELLED = "labelled"
INSTANT = "instant"
SMOOTH = "smooth"
AUTO = "auto"

STRATEGIES = (LABELLED, INSTANT, SMOOTH, "disruptive", AUTO)
"""How the shards of a component move between nodes; within a node they always move by labels."""

MERGING = (INSTANT, SMOOTH)
"""Strategies by which the partials of a shard may have to be merged."""

DIVIDING = (SMOOTH, AUTO)
"""Strategies by which two tasks may have windows of a shard."""

LATER = ("progressive", "synchronised")
"""Names of strategies that a later version has."""


def check_strategy(strategy: str, computes: Iterable[Compute], fused: Iterable[Compute] = ()) -> None:
    """Check that the shards of all computes can move by a strategy; called when a job is submitted.

    Parameters
    ----------
    strategy : str
        The value of the option `migration`.
    computes : iterable of Compute
        The stateful operators of the job that have tasks of their own.
    fused : iterable of Compute
        Those that run in the tasks of others.

    Raises
    ------
    SubmitError
        If there is no such strategy, or it is instant and an operator cannot merge partial state; names the operator.

    Examples
    --------
    >>> check_strategy("smooth", [])
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: migration='smooth' is not available yet: choose from 'labelled', ...
    """
    names = ", ".join(map(repr, STRATEGIES))
    if strategy in LATER:
        raise SubmitError(f"migration={strategy!r} is not available yet: choose from {names}")
    if strategy not in STRATEGIES:
        raise SubmitError(f"migration={strategy!r}: choose from {names}")
    if strategy != INSTANT:
        return
    behind = [one.name for one in fused]
    if behind:
        raise SubmitError(
            f"migration='instant', but {', '.join(map(repr, behind))} runs in the tasks of another compute, whose "
            "states move together: pass fuse=False, or migration='labelled'."
        )
    for compute in computes:
        if (reason := _unmerged(compute)) is not None:
            raise SubmitError(
                f"migration='instant', but {compute.name!r} {reason}, so partial state of its shards cannot be merged: "
                "pass migration='labelled'."
            )


def _unmerged(compute: Compute) -> str | None:
    """Return why the partial state of a compute cannot be merged; None if it can."""
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

"""The cost model of windows: shared or separate computation, split or combined components.

Goal
    CPU seconds and latency of the alternatives: windows that share partials or are computed separately, and a component
    whose compute and consolidate operators are split or combined.
Heuristic
    None, the formulas are evaluated as published. Their inputs are measured elsewhere and change slowly, so the paper
    evaluates them once per period, the length of the longest window.
Not done
    Sharing partials among some windows of a set only: call `sharing` for each subset. Hysteresis, which is left to the
    caller.

Notes
-----
Enorm, sections 4.2 (a cost model decides whether partials are shared), 5.1.1 (split and combine) and 5.1.2 (the choice:
least CPU within a latency limit). Enorm takes its sharing model from its reference 23. The one here follows from
section 4.2: a tuple is computed once for its partial or once for each of its windows, and results are merged along the
consolidation plan. ERRATA has no entry for these sections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import MOST_TOTAL, is_number
from dask_elastic.windows.consolidation import ConsolidationPlan
from dask_elastic.windows.window import Window, check_windows


@dataclass(frozen=True)
class Sharing:
    """The cost of computing a set of windows within a horizon, in CPU seconds.

    Parameters
    ----------
    shared : float
        Each tuple is computed once, for its partial; partials are merged into complete windows.
    separate : float
        Each tuple is computed once for each of its windows; nothing is merged.

    Examples
    --------
    >>> Sharing(shared=2.5, separate=4.0).pays
    True
    """

    shared: float
    separate: float

    @property
    def pays(self) -> bool:
        """Whether to share partials; at equal cost, no: separate computation is simpler."""
        return self.shared < self.separate


def sharing(plan: ConsolidationPlan, rate: float, tuple_cost: float, merge_cost: float) -> Sharing:
    """Compare shared partials with separate computation for the windows of a plan.

    Parameters
    ----------
    plan : ConsolidationPlan
        The plan by which shared partials are merged, by results or by keys.
    rate : float
        Tuples per unit of time of the windows.
    tuple_cost : float
        CPU seconds to compute one tuple for one window or partial, E.
    merge_cost : float
        CPU seconds to merge one result, or one key if the plan counts keys.

    Returns
    -------
    Sharing
        Both costs within the plan's horizon.

    Raises
    ------
    PlanningError
        If a number is negative or not finite.

    Notes
    -----
    Enorm, sections 4.2 and 5.1.1. A tuple belongs on average to the sum of length / frequency over all windows.

    Examples
    --------
    >>> from dask_elastic.windows.consolidation import plan
    >>> hour = plan([Window.tumbling(minutes) for minutes in (5, 10, 15, 20)], slice=1, horizon=60)
    >>> sharing(hour, rate=1000, tuple_cost=0.25, merge_cost=1)
    Sharing(shared=15086.0, separate=60000.0)
    >>> sharing(hour, rate=1000, tuple_cost=0.25, merge_cost=1).pays
    True
    """
    for name, value in (("rate", rate), ("tuple_cost", tuple_cost), ("merge_cost", merge_cost)):
        _check(name, value)
    once = rate * plan.horizon * tuple_cost
    return Sharing(once + plan.cost * merge_cost, once * _overlap(plan.windows))


@dataclass(frozen=True)
class ComponentLoad:
    """The load of a component within a period, the length of its longest window.

    Parameters
    ----------
    tuples : float
        Input tuples, T_p.
    tuple_cost : float
        CPU seconds to compute a tuple for one window, E.
    windows : float
        Windows per tuple, W.
    partials : float
        Partial windows, PW_p.
    key_groups : float
        Key groups of the component.
    migrations : float
        Key groups migrated to balance load, MK_p.
    group_cost : float
        CPU seconds to send one key group with one copy of its state, K_1.
    group_latency : float
        Seconds for which migrating a key group with its state delays processing, L.

    Raises
    ------
    PlanningError
        If a number is negative or not finite.

    Notes
    -----
    Enorm, section 5.1.1. A key group with x copies of state costs x times K_1.

    Examples
    --------
    >>> ComponentLoad(
    ...     tuples=3000, tuple_cost=1e-6, windows=2, partials=3, key_groups=50, migrations=2, group_cost=1e-3,
    ...     group_latency=0.1,
    ... ).windows
    2
    """

    tuples: float
    tuple_cost: float
    windows: float
    partials: float
    key_groups: float
    migrations: float
    group_cost: float
    group_latency: float

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))

    @classmethod
    def of(
        cls,
        windows: Sequence[Window],
        slice: int,
        rate: float,
        *,
        tuple_cost: float,
        key_groups: float,
        migrations: float,
        group_cost: float,
        group_latency: float,
    ) -> ComponentLoad:
        """Return the load of a component that computes some windows.

        Parameters
        ----------
        windows : sequence of Window
            The windows of the component.
        slice : int
            The length of a partial, in the windows' unit.
        rate : float
            Tuples per unit of time.
        tuple_cost, key_groups, migrations, group_cost, group_latency : float
            See the parameters of the class; migrations per length of the longest window.

        Returns
        -------
        ComponentLoad
            The load within the length of the longest window.

        Raises
        ------
        PlanningError
            If there is no window, one is not a multiple of the slice, or a number is out of range.

        Examples
        --------
        >>> load = ComponentLoad.of(
        ...     [Window.tumbling(10), Window.tumbling(30)], slice=10, rate=100,
        ...     tuple_cost=1e-6, key_groups=50, migrations=2, group_cost=1e-3, group_latency=0.1,
        ... )
        >>> load.tuples, load.windows, load.partials
        (3000, 2.0, 3)
        """
        chosen, size = check_windows(windows, slice)
        period = max(window.length for window in chosen)
        return cls(
            rate * period,
            tuple_cost,
            _overlap(chosen),
            period // size,
            key_groups,
            migrations,
            group_cost,
            group_latency,
        )


@dataclass(frozen=True)
class LayoutCost:
    """The cost of a component's layout within its period.

    Parameters
    ----------
    cpu : float
        CPU seconds.
    latency : float
        Seconds for which migrations delay processing.
    """

    cpu: float
    latency: float


def split(load: ComponentLoad) -> LayoutCost:
    """Return the cost of a split component, whose consolidate operators run in the component downstream.

    Parameters
    ----------
    load : ComponentLoad
        The load of the component within a period.

    Returns
    -------
    LayoutCost
        Its cost within the period.

    Notes
    -----
    Enorm, section 5.1.1: T_p·E + PW_p·K_1·key groups + MK_p·K_1, and no latency, since every migration is instant.
    Until its windows are complete, a migrated group is sent by both its old and its new owner.

    Examples
    --------
    >>> split(ComponentLoad(3000, 1e-6, 2, 3, 50, 2, 1e-3, 0.1))
    LayoutCost(cpu=0.155, latency=0.0)
    """
    sent = load.partials * load.key_groups + load.migrations
    return LayoutCost(load.tuples * load.tuple_cost + sent * load.group_cost, 0.0)


def combine(load: ComponentLoad) -> LayoutCost:
    """Return the cost of a combined component, which contains its compute and consolidate operators.

    Parameters
    ----------
    load : ComponentLoad
        The load of the component within a period.

    Returns
    -------
    LayoutCost
        Its cost within the period.

    Notes
    -----
    Enorm, section 5.1.1: T_p·W·E + MK_p·K_1·PW_p, and a latency of MK_p·L.

    Examples
    --------
    >>> combine(ComponentLoad(3000, 1e-6, 2, 3, 50, 2, 1e-3, 0.1))
    LayoutCost(cpu=0.012, latency=0.2)
    """
    computed = load.tuples * load.windows * load.tuple_cost
    moved = load.migrations * load.group_cost * load.partials
    return LayoutCost(computed + moved, load.migrations * load.group_latency)


def choose_layout(load: ComponentLoad, latency_limit: float = math.inf) -> Literal["split", "combine"]:
    """Return the layout with the least CPU cost among those within a latency limit.

    Parameters
    ----------
    load : ComponentLoad
        The load of the component within a period.
    latency_limit : float
        Seconds for which migrations may delay processing within the period; no limit by default.

    Returns
    -------
    {"split", "combine"}
        The layout; at equal cost "split", whose migrations are instant. "split" is within any limit.

    Raises
    ------
    PlanningError
        If the limit is negative or NaN.

    Notes
    -----
    Enorm, section 5.1.2.

    Examples
    --------
    >>> load = ComponentLoad(3000, 1e-6, 2, 3, 50, 2, 1e-3, 0.1)
    >>> choose_layout(load), choose_layout(load, latency_limit=0.1)
    ('combine', 'split')
    """
    if not latency_limit >= 0:
        raise PlanningError(f"latency_limit is {latency_limit!r}: give seconds, 0 or more.")
    combined = combine(load)
    return "combine" if combined.latency <= latency_limit and combined.cpu < split(load).cpu else "split"


def _overlap(windows: Sequence[Window]) -> float:
    """Return W, the mean number of windows per tuple; equal windows count once."""
    return math.fsum(window.overlap for window in dict.fromkeys(windows))


def _check(name: str, value: float) -> None:
    if not (is_number(value) and 0 <= value <= MOST_TOTAL):
        raise PlanningError(f"{name} is {value!r}: give a finite number, 0 or more.")

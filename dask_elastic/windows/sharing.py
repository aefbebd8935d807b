"""What windows cost: with partials that they share or each by itself, in a component that is split or combined.

Goal
    Numbers to decide by: seconds of CPU, and of latency, for both ways to compute a set of windows and for both ways to
    lay out its component.
Heuristic
    None, the formulas are evaluated as they stand. What they need to know is measured by others and slow to change, so
    the paper asks once in a period, the length of the longest window.
Not done
    Any choice within a set of windows, some of them shared and some not: call it for each set. Hysteresis, which is for
    those who decide.

Notes
-----
Enorm, sections 4.2 (partials are shared where a cost model says so), 5.1.1 (split and combine) and 5.1.2 (the choice:
least CPU within a limit of latency). The model for sharing is in another paper, Enorm's reference 23; what is here
follows from section 4.2: a tuple is computed once for its partial or once for each of its windows, and results are
merged along the consolidation plan. ERRATA has no entry for these sections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number
from dask_elastic.windows.consolidation import ConsolidationPlan
from dask_elastic.windows.window import Window, checked


@dataclass(frozen=True)
class Sharing:
    """What a set of windows costs within a horizon, in seconds of CPU.

    Parameters
    ----------
    shared : float
        Every tuple is computed once for its partial, and partials are merged into complete windows.
    separate : float
        Every tuple is computed once for each window that it belongs to, and nothing is merged.
    """

    shared: float
    separate: float

    @property
    def pays(self) -> bool:
        """Whether to share; of equal costs the separate way is simpler."""
        return self.shared < self.separate


def sharing(plan: ConsolidationPlan, rate: float, tuple_cost: float, merge_cost: float) -> Sharing:
    """Compare sharing partials among the windows of a plan with computing each window separately.

    Parameters
    ----------
    plan : ConsolidationPlan
        How the windows would be merged, by results or by keys.
    rate : float
        Tuples for each unit of time of the windows.
    tuple_cost : float
        Seconds to compute one tuple for one window or partial, E.
    merge_cost : float
        Seconds to merge one result, or one key of it where the plan counts keys.

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
    Enorm, sections 4.2 and 5.1.1. On average a tuple belongs to as many windows as lengths over frequencies add up to.

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
    """What a component has to do within a period, the length of its longest window.

    Parameters
    ----------
    tuples : float
        Tuples that come in, T_p.
    tuple_cost : float
        Seconds of CPU to compute a tuple for one window, E.
    windows : float
        How many windows a tuple belongs to, W.
    partials : float
        Partial windows needed, PW_p.
    key_groups : float
        Key groups of the component.
    migrations : float
        Key groups that are migrated to balance load, MK_p.
    group_cost : float
        Seconds of CPU to send one key group that holds one copy of its state, K_1.
    group_latency : float
        Seconds that migrating a key group with its state holds processing up, L.

    Raises
    ------
    PlanningError
        If a number is negative or not finite.

    Notes
    -----
    Enorm, section 5.1.1. A key group with x copies of state costs x times K_1.
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
        """Return the load that a set of windows makes.

        Parameters
        ----------
        windows : sequence of Window
            The windows of the component.
        slice : int
            The length of a partial, in the windows' unit.
        rate : float
            Tuples for each unit of time.
        tuple_cost, key_groups, migrations, group_cost, group_latency : float
            As the class has them; migrations within the length of the longest window.

        Raises
        ------
        PlanningError
            If there is no window, one is no multiple of the slice, or a number is out of range.

        Examples
        --------
        >>> load = ComponentLoad.of(
        ...     [Window.tumbling(10), Window.tumbling(30)], slice=10, rate=100,
        ...     tuple_cost=1e-6, key_groups=50, migrations=2, group_cost=1e-3, group_latency=0.1,
        ... )
        >>> load.tuples, load.windows, load.partials
        (3000, 2.0, 3)
        """
        chosen, size = checked(windows, slice)
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
    """What a layout of a component costs within its period.

    Parameters
    ----------
    cpu : float
        Seconds of CPU.
    latency : float
        Seconds that processing is held up.
    """

    cpu: float
    latency: float


def split(load: ComponentLoad) -> LayoutCost:
    """Return what a component costs whose consolidate operators went to the component downstream.

    Notes
    -----
    Enorm, section 5.1.1: T_p·E + PW_p·K_1·key groups + MK_p·K_1, and no latency, as every migration is instant. A group
    that was migrated is sent by its old and its new place until its windows are complete.

    Examples
    --------
    >>> split(ComponentLoad(3000, 1e-6, 2, 3, 50, 2, 1e-3, 0.1))
    LayoutCost(cpu=0.155, latency=0.0)
    """
    sent = load.partials * load.key_groups + load.migrations
    return LayoutCost(load.tuples * load.tuple_cost + sent * load.group_cost, 0.0)


def combine(load: ComponentLoad) -> LayoutCost:
    """Return what a component costs that holds its compute and consolidate operators together.

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


def layout(load: ComponentLoad, latency_limit: float = math.inf) -> Literal["split", "combine"]:
    """Return which layout costs less CPU, among those that hold processing up no longer than a limit.

    Parameters
    ----------
    load : ComponentLoad
        What the component has to do within a period.
    latency_limit : float
        How many seconds migrations may hold processing up within the period; no limit if left out.

    Returns
    -------
    {"split", "combine"}
        The layout. Of equal costs it is the split one, whose migrations are instant; that one is within any limit.

    Raises
    ------
    PlanningError
        If the limit is negative or no number.

    Notes
    -----
    Enorm, section 5.1.2.

    Examples
    --------
    >>> load = ComponentLoad(3000, 1e-6, 2, 3, 50, 2, 1e-3, 0.1)
    >>> layout(load), layout(load, latency_limit=0.1)
    ('combine', 'split')
    """
    if not latency_limit >= 0:
        raise PlanningError(f"latency_limit is {latency_limit!r}: give seconds, 0 or more.")
    combined = combine(load)
    return "combine" if combined.latency <= latency_limit and combined.cpu < split(load).cpu else "split"


def _overlap(windows: Sequence[Window]) -> float:
    """Return W, how many windows a tuple belongs to on average; a window that is named twice is computed once."""
    return math.fsum(window.overlap for window in dict.fromkeys(windows))


def _check(name: str, value: float) -> None:
    if not (is_number(value) and 0 <= value < math.inf):
        raise PlanningError(f"{name} is {value!r}: give a finite number of 0 or more.")

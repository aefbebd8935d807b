"""Whether a running compute keeps partials of slices or of instances: least CPU time within a limit of latency.

Goal
    The plan with the least CPU time among those whose close takes no longer than the user permits, without changing to
    and fro.
Heuristic
    The cost model of `plan_windows`, at the rate per second of event time, the number of keys, and the costs that are
    measured. What is not measured yet, such as the results of a plan that has not run, costs what it does for counts
    and sums.
Not done
    Slices for some windows of a compute and instances for others.

Notes
-----
Enorm, sections 5.1.1 and 5.1.2: each period, the length of the longest window, the cheaper plan within the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.windows.unit_costs import COUNTS_AND_SUMS, UnitCosts
from dask_elastic.windows.window_plan import Partials, plan_windows, window_load

SAVING = 0.25
"""The other plan must take so much less CPU time."""

AGREEING = 3
"""In so many periods in a row must the other plan be the better one."""


@dataclass(frozen=True)
class SharingLoad:
    """What is measured of a windowed compute within a period.

    Parameters
    ----------
    rows : float
        Rows per second of event time, T.
    partials : int
        Partials that it keeps, of all keys.
    costs : UnitCosts
        What rows, merges and results cost; by default those of counts and sums.
    other : float
        CPU seconds per row that do not depend on the plan, those of batches included.
    keys : float or None
        The keys of a result; None to estimate them by the partials.
    lookups : float
        Slices of keys that a row makes updates and corrections look up, on average.
    corrected : float
        Closed instances that a row corrects, on average.

    Examples
    --------
    >>> SharingLoad(rows=1000, partials=60).partials
    60
    """

    rows: float
    partials: int
    costs: UnitCosts = COUNTS_AND_SUMS
    other: float = 0.0
    keys: float | None = None
    lookups: float = 0.0
    corrected: float = 0.0


@dataclass(frozen=True)
class SharingChoice:
    """What the cost model prefers.

    Parameters
    ----------
    partials : {"slices", "instances"}
        The choice.
    slices, instances : float
        CPU seconds per second of event time with either plan.
    close : float
        Seconds that a task needs to merge an instance of slices.
    reason : str
        Why.
    """

    partials: Partials
    slices: float
    instances: float
    close: float
    reason: str


def choose_sharing(
    windowing: Windowing, load: SharingLoad, current: Partials, close_limit: float = math.inf
) -> SharingChoice:
    """Return the plan to use from now on.

    Parameters
    ----------
    windowing : Windowing
        Windows that may share slices.
    load : SharingLoad
        What is measured.
    current : {"slices", "instances"}
        The present plan; the other one must save a share of the CPU time, or be the only one within the limit.
    close_limit : float
        Seconds that merging an instance may take.

    Returns
    -------
    SharingChoice
        The choice.

    Examples
    --------
    >>> from dask_elastic.windows import tumbling
    >>> windowing = Windowing(tuple(map(tumbling, ("5min", "10min", "15min", "20min"))), ("at",))
    >>> choose_sharing(windowing, SharingLoad(rows=100_000, partials=2000), "instances").partials
    'slices'
    >>> expensive = UnitCosts(row=1e-8, merge=1e-3)
    >>> choose_sharing(windowing, SharingLoad(rows=10, partials=2000, costs=expensive), "slices").partials
    'instances'
    >>> choose_sharing(windowing, SharingLoad(rows=100_000, partials=2000), "slices", close_limit=1e-6).reason
    'merging an instance takes 3e-05 s, more than the limit of 1e-06 s'
    """
    keys = max(1.0, load.partials / kept_per_key(windowing, current)) if load.keys is None else load.keys
    costs = load.costs
    plan = plan_windows(windowing, window_load(load.rows, keys, costs, load.other, load.corrected, load.lookups))
    assert plan.shared is not None
    assert plan.separate is not None
    close = keys * ((plan.most_merges or 0.0) * costs.merge if costs.formed is None else costs.formed)
    own, other = (plan.shared, plan.separate) if current == "slices" else (plan.separate, plan.shared)
    if close > close_limit:
        reason = f"merging an instance takes {close:.2g} s, more than the limit of {close_limit:.2g} s"
        return SharingChoice("instances", plan.shared, plan.separate, close, reason)
    wanted = current
    reason = "it costs less" if own <= other else f"the other plan saves less than {SAVING:.0%}"
    if other < (1 - SAVING) * own:
        wanted, reason = ("instances" if current == "slices" else "slices"), f"it saves {1 - other / own:.0%}"
    return SharingChoice(wanted, plan.shared, plan.separate, close, reason)


def kept_per_key(windowing: Windowing, partials: Partials) -> int:
    """Return the most partials that a key has at a time.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.
    partials : {"slices", "instances"}
        The plan.

    Examples
    --------
    >>> from dask_elastic.windows import hopping
    >>> windowing = Windowing((hopping("1h", "10min"),), ("at",))
    >>> kept_per_key(windowing, "slices"), kept_per_key(windowing, "instances")
    (6, 6)
    """
    windows = [window for window in windowing.windows if isinstance(window, EventWindow)]
    lateness = windowing.allowed_lateness
    if partials == "slices":
        return -(-(max(window.length for window in windows) + lateness) // windowing.slice)
    return sum(-(-(window.length + lateness) // window.frequency) for window in windows)


class Agreement:
    """Lets a choice pass that has been the same for some periods, so that plans do not change to and fro.

    Examples
    --------
    >>> agreement = Agreement()
    >>> [agreement.passes(wanted, "slices") for wanted in ("instances", "instances", "slices", *["instances"] * 3)]
    [False, False, False, False, False, True]
    """

    def __init__(self) -> None:
        self._periods = 0

    def passes(self, wanted: Partials, current: Partials) -> bool:
        """Return whether to change from the current plan to the wanted one."""
        self._periods = self._periods + 1 if wanted != current else 0
        if self._periods < AGREEING:
            return False
        self._periods = 0
        return True

"""The plan of a windowed compute: partials per slice that windows share, or a state for each instance.

Goal
    The plan with the least CPU time, from the windows and a few measured numbers, and an explanation of it.
Heuristic
    Both costs are those of `dask_elastic.windows.cost_model`, in which slices are merged along the cheapest
    consolidation plan, or by running merges where these are fewer; and what costs the same with either plan.
Not done
    Slices for some windows and instances for others. The costs of state: with many keys, the plan with less of it may
    be faster than its CPU time says.

Notes
-----
Enorm, sections 4.2, 5.1.1 and 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dask_elastic.topology.windowing import EventWindow, Windowing, duration_text
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import MOST_TOTAL, is_number
from dask_elastic.vocab.window_costs import update_lookups
from dask_elastic.windows.consolidation import ConsolidationPlan, Pattern, plan
from dask_elastic.windows.cost_model import sharing
from dask_elastic.windows.unit_costs import UnitCosts
from dask_elastic.windows.window import Window

Partials: TypeAlias = Literal["slices", "instances"]

RUNNING = 3
"""How often running merges merge a slice: behind a middle, before it, and for a result."""


@dataclass(frozen=True)
class WindowLoad:
    """What is measured of a windowed compute.

    Parameters
    ----------
    rows : float
        Rows per second of event time, T.
    row_cost : float
        CPU seconds to add a row to one partial, E.
    merge_cost : float
        CPU seconds to merge the partials of one key.
    keys : float
        Keys in a partial, K.
    result_cost : float
        CPU seconds to close an instance that has a partial of its own, per key.
    formed_cost : float or None
        CPU seconds to close an instance of slices, per key, if that is measured: in the place of `merge_cost`, since
        slices may have fewer keys than instances.
    other_cost : float
        CPU seconds per row that do not depend on the plan: routing, hashing, evaluating columns.
    corrected : float
        Closed instances that a row corrects, on average.
    correction_cost : float or None
        CPU seconds to correct an instance, without its lookups, where windows may share slices: with either plan if it
        may change. None for those of merging its slices, which the first late row of each key does.
    lookups : float
        Slices of keys that a row makes updates and corrections look up, on average, as counted by `update_lookups`.
    lookup_cost : float
        CPU seconds of one of them, with its merges.

    Raises
    ------
    PlanningError
        If a number is negative or not finite.

    Examples
    --------
    >>> WindowLoad(rows=100_000, row_cost=2e-8, merge_cost=1e-7, keys=500).keys
    500
    """

    rows: float
    row_cost: float
    merge_cost: float
    keys: float
    result_cost: float = 0.0
    other_cost: float = 0.0
    formed_cost: float | None = None
    corrected: float = 0.0
    correction_cost: float | None = None
    lookups: float = 0.0
    lookup_cost: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("formed_cost", "correction_cost") and value is None:
                continue
            if not (is_number(value) and 0 <= value <= MOST_TOTAL):
                raise PlanningError(f"{name} is {value!r}: give a finite number, 0 or more.")


def window_load(
    rows: float, keys: float, costs: UnitCosts, other: float = 0.0, corrected: float = 0.0, lookups: float = 0.0
) -> WindowLoad:
    """Return a load with measured costs.

    Parameters
    ----------
    rows : float
        Rows per second of event time.
    keys : float
        Keys in the result of an instance.
    costs : UnitCosts
        What rows, merges and results cost.
    other : float
        CPU seconds per row that do not depend on the plan.
    corrected : float
        Closed instances that a row corrects, on average.
    lookups : float
        Slices of keys that a row makes updates and corrections look up, on average.

    Returns
    -------
    WindowLoad
        The load.

    Examples
    --------
    >>> window_load(rows=1000, keys=10, costs=UnitCosts(row=5e-8)).row_cost
    5e-08
    """
    priced = costs.row, costs.merge, keys, costs.result, other, costs.formed
    return WindowLoad(rows, *priced, corrected, costs.correction, lookups, costs.lookup)


@dataclass(frozen=True)
class WindowPlan:
    """How a windowed compute keeps its partials, and what the alternatives cost.

    Parameters
    ----------
    windows : tuple of EventWindow
        The windows.
    slice : int
        The length of a slice in microseconds.
    partials : {"slices", "instances"}
        The choice: one partial for each key and slice, which instances share, or one for each key and instance.
    reason : str
        Why it is the choice.
    shared, separate : float or None
        CPU seconds per second of event time with slices and with instances; None if slices are not possible.
    merges, naive_merges : float or None
        Results merged per second of event time along the cheapest plan, and from slices alone.
    most_merges : float or None
        Results merged into the instance that needs most of them.
    """

    windows: tuple[EventWindow, ...]
    slice: int
    partials: Partials
    reason: str
    shared: float | None = None
    separate: float | None = None
    merges: float | None = None
    naive_merges: float | None = None
    most_merges: float | None = None

    @property
    def overlap(self) -> float:
        """The mean number of instances that contain a row, W."""
        return math.fsum(window.length / window.frequency for window in self.windows)

    @property
    def partials_per_key(self) -> int:
        """The most partials of one key that are kept at a time, PW with slices."""
        if self.partials == "slices":
            return max(window.length for window in self.windows) // self.slice
        return sum(-(-window.length // window.frequency) for window in self.windows)

    def explain(self) -> str:
        """Return the plan as text.

        Returns
        -------
        str
            A few lines.

        Examples
        --------
        >>> from dask_elastic.windows import tumbling
        >>> windowing = Windowing(tuple(map(tumbling, ("5min", "10min", "15min", "20min"))), ("at",))
        >>> print(plan_windows(windowing, WindowLoad(1e5, 2e-8, 1e-7, 500)).explain())
        windows: 5min, 10min, 15min, 20min
        plan: slices of 5min, because they cost less; at most 4 partials per key
        CPU seconds per second of event time: 0.002 with slices, 0.008 with instances
        merges: 0.0106 results per second, 0.0133 from slices alone
        """
        lines = [f"windows: {', '.join(map(str, self.windows))}"]
        kept = f"slices of {duration_text(self.slice)}" if self.partials == "slices" else "a state for each instance"
        lines.append(f"plan: {kept}, because {self.reason}; at most {self.partials_per_key} partials per key")
        if self.shared is not None and self.separate is not None:
            costs = f"{self.shared:.3g} with slices, {self.separate:.3g} with instances"
            lines.append(f"CPU seconds per second of event time: {costs}")
            lines.append(f"merges: {self.merges:.3g} results per second, {self.naive_merges:.3g} from slices alone")
        return "\n".join(lines)


def plan_windows(windowing: Windowing, load: WindowLoad, slice: int | None = None) -> WindowPlan:
    """Choose between slices and instances.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.
    load : WindowLoad
        What is measured of the compute.
    slice : int, optional
        The length of a slice in microseconds; by default the longest one of which all instances consist.

    Returns
    -------
    WindowPlan
        The plan. Instances if slices are not possible: no row is in two instances, or rows stand for spans of time,
        which may lie across slices.

    Raises
    ------
    PlanningError
        If the windows are not over event time, or an instance does not consist of whole slices.

    Examples
    --------
    >>> from dask_elastic.windows import hopping, tumbling
    >>> load = WindowLoad(rows=1000, row_cost=1e-6, merge_cost=1e-6, keys=10)
    >>> plan_windows(Windowing((hopping("1h", "10min"),), ("at",)), load).partials
    'slices'
    >>> plan_windows(Windowing((tumbling("1h"),), ("at",)), load).partials
    'instances'
    """
    windows = tuple(window for window in windowing.windows if isinstance(window, EventWindow))
    if not windows:
        raise PlanningError(f"{windowing} has no windows over event time: only these share slices.")
    longest = slice_length(windows)
    size = longest if slice is None else slice
    if size < 1 or longest % size:
        raise PlanningError(f"slice is {size}: give a divisor of {longest}, of which all instances consist.")
    if (len(windowing.time) > 1 or windowing.revised) and windowing.unshared is not None:
        return WindowPlan(windows, size, "instances", windowing.unshared)
    try:
        found = _consolidation(windows, size)
    except PlanningError:
        return WindowPlan(windows, size, "instances", "they consist of too many slices")
    return _cheaper(windows, size, found, load, windowing.changes_sharing)


def single_lookups(windowing: Windowing) -> float:
    """Return the lookups of updates after a batch of one row, see `update_lookups`; 0 without updates.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.

    Examples
    --------
    >>> from dask_elastic.windows import hopping
    >>> single_lookups(Windowing((hopping("1h", "10min"),), ("at",), emit="updates"))
    4571.0
    """
    windows = [window for window in windowing.windows if isinstance(window, EventWindow)]
    if windowing.emit != "updates" or not windows:
        return 0.0
    # The instances of a row are those that end after it and begin before.
    slices = max(2 * window.length - min(window.frequency, window.length) for window in windows) // windowing.slice
    return update_lookups(1, slices, sum(-(-window.length // window.frequency) for window in windows))


def slice_length(windows: tuple[EventWindow, ...]) -> int:
    """Return the length of the longest slices of which all instances of some windows consist.

    Parameters
    ----------
    windows : tuple of EventWindow
        The windows.

    Returns
    -------
    int
        Microseconds: the greatest common divisor of lengths, frequencies and differences of starts.

    Examples
    --------
    >>> slice_length((EventWindow(5, 30, 10), EventWindow(10, 20, 20)))
    5
    """
    numbers = [number for window in windows for number in (window.length, window.frequency)]
    return math.gcd(*numbers, *(window.start - windows[0].start for window in windows))


def _consolidation(windows: tuple[EventWindow, ...], size: int) -> ConsolidationPlan:
    origin = windows[0].start
    spans = [
        Window((window.start - origin) // size, window.length // size, window.frequency // size) for window in windows
    ]
    return plan(spans, 1)


def _cheaper(
    windows: tuple[EventWindow, ...], size: int, found: ConsolidationPlan, load: WindowLoad, changes: bool
) -> WindowPlan:
    slice_seconds = size * 1e-6
    seconds = found.horizon * slice_seconds
    rows = sharing(found, load.rows * slice_seconds, load.row_cost, 0.0)
    other = load.rows * load.other_cost
    forms = [(min(one.recipe.merges, _running(windows, size, one)), len(one.ends)) for one in found.patterns]
    merges = math.fsum(count * times for count, times in forms) / seconds
    results = found.formed / seconds * load.keys
    merging = merges * load.keys * load.merge_cost if load.formed_cost is None else results * load.formed_cost
    slices = max(window.length for window in windows) // size
    correction = slices * load.merge_cost if load.correction_cost is None else load.correction_cost
    corrections = load.rows * load.corrected * correction
    shared = rows.shared / seconds + merging + corrections + load.rows * load.lookups * load.lookup_cost + other
    separate = rows.separate / seconds + results * load.result_cost + other
    if changes and load.correction_cost is not None:
        # Late rows are added apart from others, whatever the plan.
        separate += corrections
    overlap = math.fsum(window.length / window.frequency for window in windows)
    reason = "they cost less"
    if shared >= separate:
        reason = "no row is in two of them" if overlap <= 1 else "merging slices would cost more"
    return WindowPlan(
        windows,
        size,
        "slices" if shared < separate else "instances",
        reason,
        shared,
        separate,
        merges,
        found.naive_merges / seconds,
        max(count for count, _ in forms),
    )


def _running(windows: tuple[EventWindow, ...], size: int, pattern: Pattern) -> float:
    """Return the merges of one instance by running merges, which merge each of its new slices some times."""
    hops = [windows[position].frequency for position in pattern.recipe.windows]
    return RUNNING * min(hops) / size

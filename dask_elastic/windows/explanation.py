"""Why a windowed compute keeps its partial results as it does, what that costs, and what the alternative would cost."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.topology.windowing import EventWindow, Windowing, duration_text
from dask_elastic.windows.sharing_choice import kept_per_key
from dask_elastic.windows.unit_costs import COUNTS_AND_SUMS, MeasuredCosts
from dask_elastic.windows.window_plan import Partials, WindowPlan, plan_windows, single_lookups, window_load

PARTIAL_BYTES = 80
"""Bytes of state of a partial of a few counts and sums, by which the number of keys is estimated."""


_UNITS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))


@dataclass(frozen=True)
class WindowMeasures:
    """What is measured of a windowed compute.

    Parameters
    ----------
    rows : float
        Rows per second that arrive.
    busy : float
        CPU seconds per second that its tasks take.
    state_bytes : int
        Bytes of its partials.
    costs : MeasuredCosts or None
        What its partial results cost; None if that is not measured.
    event_rows : float or None
        Rows per second of event time, T; None if that is not known.

    Examples
    --------
    >>> WindowMeasures(rows=1000, busy=0.1, state_bytes=7000).row_cost
    0.0001
    """

    rows: float
    busy: float
    state_bytes: int
    costs: MeasuredCosts | None = None
    event_rows: float | None = None

    @property
    def row_cost(self) -> float | None:
        """CPU seconds per row, all work of the tasks included; None without rows."""
        return self.busy / self.rows if self.rows > 0 else None


@dataclass(frozen=True)
class WindowExplanation:
    """How a windowed compute keeps partial results, and what that costs; `str` makes a few lines of it.

    Parameters
    ----------
    operator : str
        The compute.
    windowing : Windowing
        Its windows.
    plan : WindowPlan or None
        What the cost model prefers at the measured load; None for windows other than over event time.
    measured : WindowMeasures or None
        What is measured; None if nothing is yet.
    current : {"slices", "instances"} or None
        What rows are added to now; None for the choice at submit.
    changes : bool
        Whether the cost model and `Job.share` may change it while the job runs.

    See Also
    --------
    explain_windows : Makes one.
    """

    operator: str
    windowing: Windowing
    plan: WindowPlan | None
    measured: WindowMeasures | None
    current: Partials | None = None
    changes: bool = True

    @property
    def shares(self) -> bool:
        """Whether rows are added to slices now."""
        return self.windowing.shares if self.current is None else self.current == "slices"

    @property
    def partials_per_key(self) -> int | None:
        """The most partials of a key that are needed at a time; None if that depends on its rows."""
        windows = [window for window in self.windowing.windows if isinstance(window, EventWindow)]
        if not windows:
            return None
        return kept_per_key(self.windowing, "slices" if self.shares else "instances")

    def __str__(self) -> str:
        lines = [f"{self.operator}: {self.windowing}"]
        if self.plan is not None:
            lines += self._kept(self.plan)
        if self.measured is not None:
            lines.append(self._measured(self.measured))
        return "\n".join(lines)

    def _kept(self, plan: WindowPlan) -> list[str]:
        shares = self.shares
        kept = f"slices of {duration_text(self.windowing.slice)}, which instances share" if shares else "instances"
        chosen = "share='auto'" if self.windowing.share == "auto" else f"share={self.windowing.share}"
        lines = [f"partials: of {kept} ({chosen}); at most {self.partials_per_key} per key"]
        if plan.shared is None or plan.separate is None:
            lines.append(f"the alternative: none, because {plan.reason}")
            return lines
        if shares:
            lines.append(
                f"close: {plan.most_merges:.3g} slices and shorter instances are merged into an instance at most, "
                f"{self._slices} slices without sharing of merges"
            )
        own, other = (plan.shared, plan.separate) if shares else (plan.separate, plan.shared)
        # Event time may pass faster than the clock, for example when a stream is replayed.
        pace, second = 1.0, "second"
        if self.measured is not None and self.measured.event_rows:
            pace = self.measured.rows / self.measured.event_rows
        if not pace:
            pace, second = 1.0, "second of event time"
        impossible = None if shares else self.windowing.unshared
        alternative = f"share=True is not possible, because {impossible}"
        if impossible is None:
            alternative = f"{other * pace:.3g} with share={not shares}"
        lines.append(f"predicted: {own * pace:.3g} CPU seconds per {second}, {alternative}")
        lines.append(self._costs(plan))
        if self.windowing.allowed_lateness:
            lines.append(self._corrections())
        if self.windowing.emit == "updates":
            lines.append(self._updates())
        if impossible is not None or other >= own:
            return lines
        wanted = "instances" if shares else "slices"
        if self.windowing.changes_sharing and not self.changes:
            lines.append(f"{wanted} would cost less; the plan of this compute does not change while the job runs")
        elif self.windowing.changes_sharing:
            lines.append(f"{wanted} would cost less; Job.share({self.operator!r}, {wanted!r}) changes at once to them")
        else:
            lines.append(f"share={not shares} would cost less; it needs a restart without the state of this compute")
        return lines

    @property
    def _slices(self) -> int:
        windows = [window for window in self.windowing.windows if isinstance(window, EventWindow)]
        return max(window.length for window in windows) // self.windowing.slice

    def _costs(self, plan: WindowPlan) -> str:
        """Return the costs on which the prediction is based, and where they are from."""
        measured = None if self.measured is None else self.measured.costs
        units = COUNTS_AND_SUMS if measured is None else measured.units
        formed = _of_result(units.formed) if units.formed is not None else f"{_duration(units.merge)} per merged key"
        text = (
            f"costs: E = {_duration(units.row)} per row and instance, W = {plan.overlap:.3g} instances per row; "
            f"closing {formed} of slices, {_of_result(units.result)} of instances"
        )
        if measured is None or not units.measured:
            return f"{text}; those of counts and sums, since nothing is measured yet"
        names = {"row": "adding rows", "merge": "closing slices", "result": "closing instances"}
        lacking = " and ".join(name for key, name in names.items() if key not in units.measured)
        other = f"; {_duration(measured.other)} per row with either plan"
        return f"{text}{other}; measured{f', except {lacking}, as of counts and sums' if lacking else ''}"

    def _corrections(self) -> str:
        """Return how often late rows correct results, and what that costs."""
        measured = None if self.measured is None else self.measured.costs
        if measured is None or not measured.rows:
            return "corrections: not measured yet"
        cost = measured.units.correction
        each = "" if cost is None else f", {_duration(cost)} each"
        if cost is not None and self.windowing.emit != "updates":
            each += f"; with slices, {self._lookups(measured)}"
        return f"corrections: {measured.corrected:.3g} per row{each}"

    def _updates(self) -> str:
        """Return how many results of open instances there are, and what consolidating them costs."""
        measured = None if self.measured is None else self.measured.costs
        if measured is None or not measured.updates:
            return "updates: not measured yet; as those of batches of one row"
        return f"updates: {measured.updates:.3g} results per row; with slices, {self._lookups(measured)}"

    @staticmethod
    def _lookups(measured: MeasuredCosts) -> str:
        """Return how many slices updates and corrections look up, and what that costs."""
        units = measured.units
        guessed = "" if "lookup" in units.measured else ", as of counts and sums"
        return f"{measured.lookups:.3g} lookups per row, {_duration(units.lookup)} each{guessed}"

    def _measured(self, measured: WindowMeasures) -> str:
        cost = "" if measured.row_cost is None else f", {measured.row_cost * 1e9:.0f} ns per row"
        event = "" if measured.event_rows is None else f", T = {measured.event_rows:.0f} per second of event time"
        known = None if measured.costs is None else measured.costs.keys
        keys = "" if known is None else f", K = {known:.0f} keys per result"
        return (
            f"measured: {measured.rows:.0f} rows per second{event}{keys}, {measured.busy:.3g} CPU seconds per second"
            f"{cost}; {measured.state_bytes} bytes of partials"
        )


def _of_result(seconds: float) -> str:
    return f"{_duration(seconds)} per result"


def _duration(seconds: float) -> str:
    unit, size = next((unit, size) for unit, size in _UNITS if seconds < 1000 * size or unit == "s")
    return f"{seconds / size:.3g} {unit}"


def explain_windows(
    operator: str,
    windowing: Windowing,
    measured: WindowMeasures | None = None,
    current: Partials | None = None,
    changes: bool = True,
) -> WindowExplanation:
    """Explain the plan of a windowed compute at the measured load.

    Parameters
    ----------
    operator : str
        The compute.
    windowing : Windowing
        Its windows.
    measured : WindowMeasures, optional
        What is measured of it.
    current : {"slices", "instances"}, optional
        What rows are added to now; by default the choice at submit.
    changes : bool, optional
        Whether it may change while the job runs: not in the tasks of another compute, nor if key groups move.

    Returns
    -------
    WindowExplanation
        The explanation. Where the costs are not measured, its prediction takes those of counts and sums, for rows whose
        times are those of their arrival, and without measurements a row per second of one key. The number of keys is
        estimated by the bytes if no instance has closed.

    Examples
    --------
    >>> from dask_elastic.windows import hopping
    >>> windowing = Windowing((hopping("1h", "10min"),), ("at",))
    >>> print(explain_windows("hourly", windowing, WindowMeasures(1e5, 0.01, 4_800_000)))
    hourly: 1h every 10min of at
    partials: of slices of 10min, which instances share (share='auto'); at most 6 per key
    close: 3 slices and shorter instances are merged into an instance at most, 6 slices without sharing of merges
    predicted: 0.002 CPU seconds per second, 0.012 with share=False
    costs: E = 20 ns per row and instance, W = 6 instances per row; closing 30 ns per merged key of \
slices, 400 ns per result of instances; those of counts and sums, since nothing is measured yet
    measured: 100000 rows per second, 0.01 CPU seconds per second, 100 ns per row; 4800000 bytes of partials
    """
    explanation = WindowExplanation(operator, windowing, None, measured, current, changes)
    per_key = explanation.partials_per_key
    if per_key is None:
        return explanation
    if measured is None:
        load = window_load(1.0, 1.0, COUNTS_AND_SUMS, lookups=single_lookups(windowing))
    else:
        found = measured.costs or MeasuredCosts(COUNTS_AND_SUMS, 0.0, None, 0.0)
        keys = found.keys or max(1.0, measured.state_bytes / PARTIAL_BYTES / per_key)
        lookups = single_lookups(windowing) if windowing.emit == "updates" and not found.updates else found.lookups
        rows = measured.event_rows or measured.rows
        load = window_load(rows, keys, found.units, found.other, found.corrected, lookups)
    return WindowExplanation(operator, windowing, plan_windows(windowing, load), measured, current, changes)


def event_rows(windowing: Windowing, rows: float, instances: float) -> float | None:
    """Return the rows per second of event time, T.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.
    rows : float
        Rows that were processed.
    instances : float
        Instances that have closed meanwhile: each window closes one each time its frequency has passed.

    Returns
    -------
    float or None
        The rate; None if none has closed.

    Examples
    --------
    >>> from dask_elastic.windows import hopping
    >>> event_rows(Windowing((hopping("1h", "10min"),), ("at",)), rows=60_000, instances=10)
    10.0
    """
    each = sum(1e6 / window.frequency for window in windowing.windows if isinstance(window, EventWindow))
    return rows * each / instances if instances > 0 and each > 0 else None

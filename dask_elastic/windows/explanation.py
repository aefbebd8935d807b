"""Why a windowed compute keeps its partial results as it does, what that costs, and what the alternative would cost."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.topology.windowing import EventWindow, Windowing, duration_text
from dask_elastic.windows.window_plan import Partials, WindowLoad, WindowPlan, plan_windows

ROW_COST, MERGE_COST = 2e-8, 1e-8
"""CPU seconds to add a row to a partial, and to merge two partials of a key, of a few counts and sums: the defaults."""

MERGES = 3
"""How often a slice is merged on average at most: behind a middle, before it, and for a result."""

PARTIAL_BYTES = 80
"""Bytes of state of a partial of a few counts and sums, by which the number of keys is estimated."""


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

    Examples
    --------
    >>> WindowMeasures(rows=1000, busy=0.1, state_bytes=7000).row_cost
    0.0001
    """

    rows: float
    busy: float
    state_bytes: int

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

    See Also
    --------
    explain_windows : Makes one.
    """

    operator: str
    windowing: Windowing
    plan: WindowPlan | None
    measured: WindowMeasures | None
    current: Partials | None = None

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
        if self.shares:
            return max(window.length for window in windows) // self.windowing.slice
        return sum(-(-(window.length + self.windowing.allowed_lateness) // window.frequency) for window in windows)

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
        if shares:
            lines.append(f"close: a slice is merged about {MERGES} times, whatever the number of slices in an instance")
        if plan.shared is None or plan.separate is None:
            lines.append(f"the alternative: none, because {plan.reason}")
            return lines
        own, other = (plan.shared, plan.separate) if shares else (plan.separate, plan.shared)
        lines.append(f"predicted: {own:.3g} CPU seconds per second, {other:.3g} with share={not shares}")
        if other < own and self.windowing.share == "auto" and self.windowing.shares:
            wanted = "instances" if shares else "slices"
            lines.append(f"{wanted} would cost less; Job.share({self.operator!r}, {wanted!r}) changes at once to them")
        elif other < own:
            lines.append(f"share={not shares} would cost less; it needs a restart without the state of this compute")
        return lines

    def _measured(self, measured: WindowMeasures) -> str:
        cost = "" if measured.row_cost is None else f", {measured.row_cost * 1e9:.0f} ns per row"
        return (
            f"measured: {measured.rows:.0f} rows per second, {measured.busy:.3g} CPU seconds per second{cost}; "
            f"{measured.state_bytes} bytes of partials"
        )


def explain_windows(
    operator: str, windowing: Windowing, measured: WindowMeasures | None = None, current: Partials | None = None
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

    Returns
    -------
    WindowExplanation
        The explanation. Its prediction takes the costs of counts and sums, for rows whose times are those of their
        arrival, and without measurements a row per second of one key. The number of keys is estimated by the bytes.

    Examples
    --------
    >>> from dask_elastic.windows import hopping
    >>> windowing = Windowing((hopping("1h", "10min"),), ("at",))
    >>> print(explain_windows("hourly", windowing, WindowMeasures(1e5, 0.01, 4_800_000)))
    hourly: 1h every 10min of at
    partials: of slices of 10min, which instances share (share='auto'); at most 6 per key
    close: a slice is merged about 3 times, whatever the number of slices in an instance
    predicted: 0.002 CPU seconds per second, 0.012 with share=False
    measured: 100000 rows per second, 0.01 CPU seconds per second, 100 ns per row; 4800000 bytes of partials
    """
    explanation = WindowExplanation(operator, windowing, None, measured, current)
    per_key = explanation.partials_per_key
    if per_key is None:
        return explanation
    keys = 1.0 if measured is None else max(1.0, measured.state_bytes / PARTIAL_BYTES / per_key)
    load = WindowLoad(1.0 if measured is None else measured.rows, ROW_COST, MERGE_COST, keys)
    return WindowExplanation(operator, windowing, plan_windows(windowing, load), measured, current)

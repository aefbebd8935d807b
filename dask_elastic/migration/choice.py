"""The strategy of one shard move between nodes, chosen by the waiting of rows that each is expected to cause.

Notes
-----
Enorm, section 5: the latency of a disruptive migration depends on the size of the state, the time until a smooth one is
over on the length of the windows. All costs are in row-seconds, the seconds that rows wait in all:

- A shard that pauses for p seconds while r rows per second arrive lets them wait for r p² / 2.
- A labelled move pauses the shard while its state travels. An instant one does not, but its target merges the state in
  parts whenever it is idle. The rows that come meanwhile wait, and so do those behind them until the target is idle
  again, which takes the longer the more load it has. A close that comes before the end waits with all rows behind it.
- A smooth move lets the load of the shard stay at the source until its windows have closed. Rows wait there as in a
  queue with this load (M/M/1), and the backlog grows while the load is above one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.migration.strategy import INSTANT, LABELLED, SMOOTH
from dask_elastic.vocab.counted import three_digits

BUSY = 0.98
"""The load up to which the waiting in a queue is that of a stable one; above it the formula has no meaning."""


@dataclass(frozen=True)
class MoveMeasures:
    """What is known when a shard is about to move.

    Parameters
    ----------
    state_bytes : float
        Bytes of the shard's state.
    rows : float
        Rows of the shard per second.
    seconds_per_row : float
        Seconds for which a row keeps a core busy.
    batch_seconds : float
        Seconds for which a sub-batch does.
    source_load, target_load : float
        Busy seconds per second of the two tasks that their rows need, with this shard at the source; may exceed 1.
    bytes_per_second : float
        How fast state travels and is installed, as measured in earlier moves.
    pause : float
        Seconds for which a shard pauses whose state does not travel, as measured.
    merge_bytes_per_second : float
        How fast a task merges partials, as measured.
    merge_part : float
        Seconds that merging one part of them takes.
    close_interval : float or None
        Seconds between two closes of windows; None if it is not known.
    window_left : float or None
        Seconds until the windows have closed that have begun; None if it is not known.
    in_both : float
        The share of rows that are in windows of both tasks until then.
    """

    state_bytes: float
    rows: float
    seconds_per_row: float
    batch_seconds: float
    source_load: float
    target_load: float
    bytes_per_second: float
    pause: float
    merge_bytes_per_second: float
    merge_part: float
    close_interval: float | None = None
    window_left: float | None = None
    in_both: float = 0.0


@dataclass(frozen=True)
class StrategyCost:
    """What one strategy would cost.

    Parameters
    ----------
    strategy : str
        The strategy.
    waiting : float
        Row-seconds of waiting; infinite if the strategy cannot be judged.
    why : str
        What the waiting comes from.
    """

    strategy: str
    waiting: float
    why: str

    def __str__(self) -> str:
        return f"{self.strategy} {three_digits(self.waiting)} row-seconds ({self.why})"


def strategy_costs(measures: MoveMeasures) -> list[StrategyCost]:
    """Return what each strategy would cost, the cheapest one first.

    Parameters
    ----------
    measures : MoveMeasures
        What is known.

    Returns
    -------
    list of StrategyCost
        One of each strategy. Of equal ones the simplest is first: labelled, smooth, instant.

    Examples
    --------
    >>> one = MoveMeasures(1e8, 1e4, 1e-6, 1e-3, 0.5, 0.4, 1e8, 0.001, 1e8, 0.005, 10.0, 5.0)
    >>> [cost.strategy for cost in strategy_costs(one)]
    ['smooth', 'instant', 'labelled']
    >>> print(strategy_costs(one)[-1])
    labelled 5,010 row-seconds (a pause of 1 s for 95.4 MiB of state)
    """
    found = [_labelled(measures), _smooth(measures), _instant(measures)]
    return sorted(found, key=lambda cost: cost.waiting)


def explained(costs: list[StrategyCost]) -> str:
    """Return the choice, and what the others would have cost, as text."""
    chosen, *others = costs
    return f"expected: {chosen}; not " + ", ".join(map(str, others))


def _labelled(of: MoveMeasures) -> StrategyCost:
    pause = of.pause + of.state_bytes / of.bytes_per_second
    why = f"a pause of {pause:.2g} s for {of.state_bytes / 2**20:.3g} MiB of state"
    return StrategyCost(LABELLED, of.rows * pause**2 / 2, why)


def _instant(of: MoveMeasures) -> StrategyCost:
    merge = of.state_bytes / of.merge_bytes_per_second
    waiting = of.rows * of.pause**2 / 2
    rows = (of.target_load / of.seconds_per_row if of.seconds_per_row else 0.0) + of.rows
    # What the rows that the target gets leave it for merging, a part between two of them.
    idle = 1 - min(of.target_load + of.rows * of.seconds_per_row, BUSY)
    waiting += rows * merge * min(of.merge_part, merge) / 2 / idle
    travel = of.state_bytes / of.bytes_per_second
    if of.close_interval is not None:
        # What is left when a close comes is merged at once; it comes at any time.
        taken = travel + merge / idle
        met = min(1.0, taken / of.close_interval) if of.close_interval else 1.0
        waiting += met * of.rows * (travel + merge) ** 2 / 6
    why = f"{merge:.2g} s of merging in parts of {min(of.merge_part, merge):.2g} s at a load of {1 - idle:.2g}"
    return StrategyCost(INSTANT, waiting, why)


def _smooth(of: MoveMeasures) -> StrategyCost:
    left = of.window_left
    if left is None:
        return StrategyCost(SMOOTH, float("inf"), "how long windows last is not known")
    load = of.rows * of.seconds_per_row
    late = _waiting(of, of.source_load, left) - _waiting(of, of.source_load - load, left)
    spared = _waiting(of, of.target_load + load, left) - _waiting(of, of.target_load, left)
    twice = _waiting(of, of.target_load + load * of.in_both, left) - _waiting(of, of.target_load, left)
    waiting = of.rows * of.pause**2 / 2 + max(late - spared, 0.0) + twice
    return StrategyCost(SMOOTH, waiting, f"windows that close within {left:.3g} s at a load of {of.source_load:.2g}")


def _waiting(of: MoveMeasures, load: float, seconds: float) -> float:
    """Return the row-seconds that the rows of a task wait for some time, given its load."""
    if load <= 0 or not of.seconds_per_row:
        return 0.0
    rows = load / of.seconds_per_row
    stable = min(load, BUSY)
    waiting = rows * seconds * of.batch_seconds * stable / (1 - stable)
    return waiting + rows * max(load - 1, 0.0) * seconds**2 / 2

"""Division of scarce cores among jobs, and of a job's share among its executors.

Goal
    Max-min fairness: no job gets more cores, beyond its minimum, than another job that still needs some.
Method
    Each executor gets one core. The remaining cores go one by one to the job with the fewest cores that needs more.
    Within its share, a job gives cores to the executors where they lower its latency most or, if queues grow in any
    case, in proportion to the loads.
Not done
    Weights and priorities of jobs.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dask_elastic.control.demand import JobDemand
from dask_elastic.control.queues import Amounts, Cores, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.meters.chi_squared import chi_squared_above
from dask_elastic.planning.cores.problem import MOST_CORES
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_whole

EAGER = 3.0
"""Factor on the gain required of an exchange based on one snapshot, while the noise of the loads is unknown."""

FOLLOWS = 2.5
"""Seconds after such an exchange in which it may be corrected."""

FOLLOW = 1.5
"""Factor on the gain required of the correction."""

SURE = 5.0
"""A gain must be at least this many times the noise of the loads on which it is based."""

CHANGES = 24
"""Number of last changes between snapshots from which the noise of the loads is estimated."""

KNOWN = 6
"""Number of such changes required for an estimate."""


def fair_shares(needed: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """Share cores among jobs.

    Parameters
    ----------
    needed : sequence of int
        Cores that each job needs.
    least : sequence of int
        Cores that each job must have: one per executor. Their sum may exceed `available`.
    available : int
        Number of cores.

    Returns
    -------
    list of int
        Cores of each job: at least `least`, at most `needed` if that is more, and in total at most `available` unless
        `least` requires more. Max-min fair: a larger share for one job would reduce that of a job with no more cores.

    Raises
    ------
    PlanningError
        If the lengths differ or a number is negative.

    Notes
    -----
    Ties go to the earlier job.

    Examples
    --------
    >>> fair_shares([2, 10, 10], [1, 1, 4], 16)
    [2, 7, 7]
    """
    given = [*needed, *least, available]
    if len(needed) != len(least) or not all(is_whole(count) and count >= 0 for count in given):
        raise PlanningError(
            f"needed is {needed!r}, least {least!r}, available {available!r}: give counts, and one of each per job."
        )
    if available > MOST_CORES:
        raise PlanningError(f"available is {available!r}: give {MOST_CORES} at most.")
    shares = [int(count) for count in least]
    spare = available - sum(shares)
    most = [max(int(want), share) for want, share in zip(needed, shares, strict=True)]
    if sum(most) - sum(shares) <= spare:
        return most
    # The highest level that all jobs can have, which want that much.
    low, high = 0, max(most, default=0)
    while low < high:
        level = (low + high + 1) // 2
        raised = sum(min(max(share, level), top) for share, top in zip(shares, most, strict=True))
        low, high = (level, high) if raised - sum(shares) <= spare else (low, level - 1)
    level, before = low, sum(shares)
    shares = [min(max(share, level), top) for share, top in zip(shares, most, strict=True)]
    spare -= sum(shares) - before
    for job, (share, top) in enumerate(zip(shares, most, strict=True)):
        if spare > 0 and share == level < top:
            shares[job] += 1
            spare -= 1
    return shares


@dataclass(frozen=True, eq=False)
class Portion:
    """The cores that a job gets.

    Parameters
    ----------
    cores : array of int
        Cores of each modelled executor.
    keep : array of int
        Cores that each keeps unless other executors need them.
    starved : int
        Number of cores that the job needs beyond these.
    exchanged : bool
        Whether cores are exchanged between the job's executors to raise its throughput.
    """

    cores: Cores
    keep: Cores
    starved: int
    exchanged: bool = False


class Divider:
    """Divides a job's share among its executors; remembers the loads, so that noise exchanges no cores.

    Parameters
    ----------
    settings : ControlSettings
        `exchange_gain` and `cooldown` are used.
    pause : callable
        Called between steps.

    Notes
    -----
    The best division of a share differs slightly with each snapshot, so a job that has all the cores it can get could
    exchange cores in every period. It does so only if its slowest executor gets faster, or its latency lower, by
    `exchange_gain` and by more than noise explains. Loads are averaged over as many of the last snapshots as needed;
    the mean of n snapshots has a noise √n times smaller. A large shift of load is thus answered at once, a small one
    as soon as it is significant, and constant loads cause no exchange, however close two allocations are.

    The noise of a snapshot is estimated from the lower quartile of the last changes between snapshots, since a load
    that shifts every few seconds makes most changes larger than noise. Until there is an estimate, the gain is
    determined from the mean over `cooldown` seconds, or at least half of them; or from a single snapshot if the gain is
    `EAGER` times as large. That snapshot may cover time before the shift, so that one correction is allowed within
    `FOLLOWS` seconds if it gains `FOLLOW` times `exchange_gain`.
    """

    def __init__(self, settings: ControlSettings, pause: Callable[[], None] = no_pause):
        self._settings = settings
        self._pause = pause
        self._loads: deque[tuple[float, Amounts]] = deque()
        self._changes: deque[float] = deque(maxlen=CHANGES)
        self._indices: tuple[int, ...] = ()
        self._exchanged = -math.inf
        self._eager = -math.inf

    def divide(self, demand: JobDemand, share: int, now: float) -> Portion:
        """Divide a job's share among its executors.

        Parameters
        ----------
        demand : JobDemand
            The cores the job needs.
        share : int
            The cores it can have, at least one per executor.
        now : float
            The time in seconds.

        Returns
        -------
        Portion
            At most `share` cores.
        """
        self._remember(demand, now)
        if int(demand.keep.sum()) <= share:
            return Portion(demand.keep, demand.keep, 0)
        starved = max(int(demand.needed.sum()) - share, 0)
        if int(demand.current.sum()) != share or (demand.current < 1).any():
            best = self._best(demand, demand.queues.loads, share)
            return Portion(best, np.maximum(best, np.minimum(demand.current, demand.keep)), starved)
        noise = self._noise()
        better = self._first_guess(demand, share, now) if noise is None else self._surely_better(demand, share, noise)
        if better is None:
            return Portion(demand.current, demand.current, starved)
        return self._exchange(better, starved, now)

    def _surely_better(self, demand: JobDemand, share: int, noise: float) -> Cores | None:
        """Return the best division by the mean of the fewest snapshots that make it significant; None if none do."""
        total = np.zeros(len(demand.indices))
        for count, (_, loads) in enumerate(reversed(self._loads), 1):
            total = total + loads
            if count & (count - 1):
                # Only means of 1, 2, 4, … snapshots are evaluated, since each evaluation takes time.
                continue
            least = max(self._settings.exchange_gain, SURE * noise / math.sqrt(count))
            if (best := self._if_better(demand, total / count, share, least)) is not None:
                return best
        return None

    def _first_guess(self, demand: JobDemand, share: int, now: float) -> Cores | None:
        """Return the best division while the noise is unknown; None if it gains too little."""
        gain, follows = self._settings.exchange_gain, now - self._eager <= FOLLOWS
        best = self._if_better(demand, demand.queues.loads, share, gain * (FOLLOW if follows else EAGER))
        if best is not None:
            self._eager = -math.inf if follows else now
            return best
        if min(now - self._exchanged, 2 * (now - self._loads[0][0])) < self._settings.cooldown:
            return None
        return self._if_better(demand, np.mean([known for _, known in self._loads], axis=0), share, gain)

    def _if_better(self, demand: JobDemand, loads: Amounts, share: int, least: float) -> Cores | None:
        """Return the best division of a share under these loads if it gains at least `least`."""
        before = _with_loads(demand, loads).latency(demand.current)
        if math.isinf(before):
            # No division is better than equal load on every core.
            most = float((loads / demand.current).max()) * share / float(loads.sum()) - 1
            if most < least:
                return None
        best = self._best(demand, loads, share)
        return best if self._gain(demand, loads, before, best) >= least else None

    def _noise(self) -> float | None:
        """Return the noise of loads between snapshots, as a fraction; None until there is an estimate."""
        if len(self._changes) < KNOWN:
            return None
        free = max(len(self._indices) - 1, 1)
        # The lower quartile of changes that are normally distributed, with shares that add up to 1.
        usual = math.sqrt(chi_squared_above(0.75, free) / free)
        return statistics.quantiles(self._changes, n=4)[0] / usual

    def _exchange(self, cores: Cores, starved: int, now: float) -> Portion:
        self._exchanged = now
        last = self._loads[-1]
        self._loads.clear()
        self._loads.append(last)
        return Portion(cores, cores, starved, exchanged=True)

    def _remember(self, demand: JobDemand, now: float) -> None:
        """Record the loads, and how much the executors' shares of the load have changed."""
        loads = demand.queues.loads
        if demand.indices != self._indices:
            self._indices = demand.indices
            self._loads.clear()
            self._changes.clear()
        if self._loads and (self._loads[-1][1] > 0).all() and loads.sum() > 0:
            before = self._loads[-1][1]
            ratio = (loads / loads.sum()) / (before / before.sum())
            self._changes.append(math.sqrt(float(np.square(ratio - 1).sum()) / max(len(ratio) - 1, 1)))
        self._loads.append((now, loads))
        while self._loads[0][0] < now - self._settings.cooldown:
            self._loads.popleft()

    def _best(self, demand: JobDemand, loads: Amounts, share: int) -> Cores:
        """Return the best division of a share; an overloaded job uses all of it, since its demand is an estimate."""
        self._pause()
        cores = _with_loads(demand, loads).fewest(demand.target, share, demand.most).cores
        self._pause()
        if demand.can_relieve and int(cores.sum()) < share:
            filling = loads * (share / float(loads.sum()))
            cores = _with_loads(demand, filling).fewest(demand.target, share, demand.most).cores
        return cores

    def _gain(self, demand: JobDemand, loads: Amounts, before: float, best: Cores) -> float:
        """Return the fraction by which the slowest executor gets faster, or by which the latency falls."""
        after = before if math.isinf(before) else _with_loads(demand, loads).latency(best)
        if math.isinf(after):
            before, after = float((loads / demand.current).max()), float((loads / best).max())
        return before / after - 1 if after > 0 else 0.0


def _with_loads(demand: JobDemand, loads: Amounts) -> Queues:
    return demand.queues.with_arrival(loads * demand.queues.service, demand.queues.external)

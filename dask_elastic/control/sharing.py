"""Several jobs, one cluster: who gets how many cores where not all that is needed can be had.

Goal
    Max-min fair: no job gets more than another that still needs some, except what it needs at least.
Method
    Every executor has one core. What is left goes core by core to the job with the fewest that still needs one. Within
    its share a job puts its cores to the best use: where they lower its latency most, or, where queues grow anyhow, in
    proportion to the loads.
Not done
    Weights and priorities of jobs.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from scipy.special import gammaincinv

from dask_elastic.control.demand import Demand
from dask_elastic.control.queues import Amounts, Cores, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import PlanningError

EAGER = 3.0
"""An exchange that is judged by one moment, before it is known how noisy loads are, must gain so many times as much."""

FOLLOWS = 2.5
"""Seconds after such an exchange in which it may be corrected."""

FOLLOW = 1.5
"""The correction must gain so many times as much."""

SURE = 5.0
"""A gain counts from so many times the noise of the loads on that it is judged by."""

CHANGES = 24
"""So many of the last changes from moment to moment tell how noisy loads are, `KNOWN` of them at least."""

KNOWN = 6


def fair_shares(needed: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """Share cores between jobs.

    Parameters
    ----------
    needed : sequence of int
        Cores that each job needs.
    least : sequence of int
        Cores that each job must have: one for each executor. It may exceed what is available.
    available : int
        Cores that there are.

    Returns
    -------
    list of int
        Cores of each job: at least `least`, at most `needed` where that is more, in all no more than `available` where
        `least` allows. Raising one job's share would lower that of another which has no more.

    Raises
    ------
    PlanningError
        If the lengths differ or a number is negative.

    Notes
    -----
    Ties go to the job that comes first.

    Examples
    --------
    >>> fair_shares([2, 10, 10], [1, 1, 4], 16)
    [2, 7, 7]
    """
    if len(needed) != len(least) or min([*needed, *least, available], default=0) < 0:
        raise PlanningError(f"needed is {needed!r}, least {least!r}, available {available!r}: give counts, as many.")
    shares = list(least)
    spare = available - sum(shares)
    hungry = [(share, job) for job, share in enumerate(shares) if share < needed[job]]
    heapify(hungry)
    while spare > 0 and hungry:
        share, job = heappop(hungry)
        shares[job] = share + 1
        spare -= 1
        if shares[job] < needed[job]:
            heappush(hungry, (shares[job], job))
    return shares


@dataclass(frozen=True, eq=False)
class Portion:
    """What a job gets of what it needs.

    Parameters
    ----------
    cores : array of int
        Cores of each executor that can be decided about.
    keep : array of int
        Cores that each keeps where nobody else needs them.
    starved : int
        Cores that the job would need beyond those.
    exchanged : bool
        Whether cores change hands within the job for the sake of more throughput.
    """

    cores: Cores
    keep: Cores
    starved: int
    exchanged: bool = False


class Divider:
    """Puts a job's share to use; remembers its loads, so that noise moves no cores.

    Parameters
    ----------
    settings : ControlSettings
        `exchange_gain` and `cooldown` are used.

    Notes
    -----
    The best use of a share differs a little with each measurement, so a job that has all it can get could change cores
    around at every moment. It changes only where its slowest executor gets faster, or its latency lower, by
    `exchange_gain`, and by more than noise explains: loads are averaged over the last moments, as many as it takes, and
    the mean of n moments has a noise that is √n times smaller. So a large shift is answered at once, a small one as
    soon as it is sure, and loads that do not change exchange nothing, however close two allocations are.

    How noisy a moment is, tells the lower quartile of the last changes from one to the next: where the load itself
    shifts every few seconds, most changes are more than noise. While that is not known, a gain is judged by the mean
    over `cooldown` seconds, or at least half of them; and sooner, by the loads of one moment alone, where it is `EAGER`
    times as much. Such a moment may lie partly before the shift of the load to which it answers: `FOLLOW` times
    `exchange_gain` is enough for one correction within `FOLLOWS` seconds.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._loads: deque[tuple[float, Amounts]] = deque()
        self._changes: deque[float] = deque(maxlen=CHANGES)
        self._places: tuple[int, ...] = ()
        self._exchanged = -math.inf
        self._eager = -math.inf

    def divide(self, demand: Demand, share: int, now: float) -> Portion:
        """Return what each executor of a job gets of so many cores.

        Parameters
        ----------
        demand : Demand
            What the job needs.
        share : int
            Cores that it can have, at least one for each executor.
        now : float
            When, in seconds.

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

    def _surely_better(self, demand: Demand, share: int, noise: float) -> Cores | None:
        """Return the best use by the mean of so few moments that it is beyond doubt; None if it never is."""
        total = np.zeros(len(demand.places))
        for count, (_, loads) in enumerate(reversed(self._loads), 1):
            total = total + loads
            if count & (count - 1):
                # Means of 1, 2, 4, … moments are enough: each takes some time.
                continue
            least = max(self._settings.exchange_gain, SURE * noise / math.sqrt(count))
            if (best := self._if_better(demand, total / count, share, least)) is not None:
                return best
        return None

    def _first_guess(self, demand: Demand, share: int, now: float) -> Cores | None:
        """Return the best use while it is not known how noisy loads are; None if it gains too little."""
        gain, follows = self._settings.exchange_gain, now - self._eager <= FOLLOWS
        best = self._if_better(demand, demand.queues.loads, share, gain * (FOLLOW if follows else EAGER))
        if best is not None:
            self._eager = -math.inf if follows else now
            return best
        if min(now - self._exchanged, 2 * (now - self._loads[0][0])) < self._settings.cooldown:
            return None
        return self._if_better(demand, np.mean([known for _, known in self._loads], axis=0), share, gain)

    def _if_better(self, demand: Demand, loads: Amounts, share: int, least: float) -> Cores | None:
        """Return the best use of a share under these loads if it gains enough."""
        if math.isinf(_with_loads(demand, loads).latency(demand.current)):
            # No use of the share is better than loads that are the same on every core.
            most = float((loads / demand.current).max()) * share / float(loads.sum()) - 1
            if most < least:
                return None
        best = self._best(demand, loads, share)
        return best if self._gain(demand, loads, best) >= least else None

    def _noise(self) -> float | None:
        """Return by which part shares change from moment to moment without a reason; None while it is not known."""
        if len(self._changes) < KNOWN:
            return None
        free = max(len(self._places) - 1, 1)
        # What a quarter of the changes would not exceed if they were normal, all shares together being 1.
        usual = math.sqrt(2 * float(gammaincinv(free / 2, 0.25)) / free)
        return statistics.quantiles(self._changes, n=4)[0] / usual

    def _exchange(self, cores: Cores, starved: int, now: float) -> Portion:
        self._exchanged = now
        last = self._loads[-1]
        self._loads.clear()
        self._loads.append(last)
        return Portion(cores, cores, starved, exchanged=True)

    def _remember(self, demand: Demand, now: float) -> None:
        """Note the loads, and how much the shares of the executors have changed."""
        loads = demand.queues.loads
        if demand.places != self._places:
            self._places = demand.places
            self._loads.clear()
            self._changes.clear()
        if self._loads and (self._loads[-1][1] > 0).all() and loads.sum() > 0:
            before = self._loads[-1][1]
            ratio = (loads / loads.sum()) / (before / before.sum())
            self._changes.append(math.sqrt(float(np.square(ratio - 1).sum()) / max(len(ratio) - 1, 1)))
        self._loads.append((now, loads))
        while self._loads[0][0] < now - self._settings.cooldown:
            self._loads.popleft()

    def _best(self, demand: Demand, loads: Amounts, share: int) -> Cores:
        """Return the best use of a share; an overloaded job uses all of it, since what it needs is a guess."""
        cores = _with_loads(demand, loads).fewest(demand.target, share, demand.most).cores
        if demand.pressed and int(cores.sum()) < share:
            filling = loads * (share / float(loads.sum()))
            cores = _with_loads(demand, filling).fewest(demand.target, share, demand.most).cores
        return cores

    def _gain(self, demand: Demand, loads: Amounts, best: Cores) -> float:
        """Return the part by which the slowest executor gets faster, or by which the latency falls."""
        queues = _with_loads(demand, loads)
        before, after = queues.latency(demand.current), queues.latency(best)
        if math.isinf(before) or math.isinf(after):
            before, after = float((loads / demand.current).max()), float((loads / best).max())
        return before / after - 1 if after > 0 else 0.0


def _with_loads(demand: Demand, loads: Amounts) -> Queues:
    return demand.queues.with_arrival(loads * demand.queues.service, demand.queues.external)

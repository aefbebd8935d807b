"""The executors of one job as queues of a Jackson network, with limits on the cores of each.

Elasticutor, section 4.1. The customers are the sub-batches that tasks process, so rates are tuple rates divided by the
mean rows per sub-batch, and each customer is weighted by its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_elastic.model.jackson import Allocation, allocate, expected_latency
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.snapshot import JobSnapshot

Amounts = NDArray[np.float64]
Cores = NDArray[np.int64]

NO_LIMIT = 1 << 30
"""More cores than any executor could get."""

_NEAR = 0.05
"""If a target cannot be reached, this fraction above the best latency suffices, since the rest takes most cores."""

_LEAST_TARGET = 1e-12
"""Seconds that replace a target which other parts of the latency have already used up."""


@dataclass(frozen=True, eq=False)
class Queues:
    """Arrival and service rates of some executors.

    Parameters
    ----------
    external : float
        Tuples per second that enter the topology.
    arrival : array of float
        Tuples per second that arrive at each executor, λ.
    service : array of float
        Tuples per busy second of one core of each executor, μ.
    rows : array of float
        Mean tuples per customer (sub-batch) of each executor.
    """

    external: float
    arrival: Amounts
    service: Amounts
    rows: Amounts

    def __post_init__(self) -> None:
        if not len(self.arrival) == len(self.service) == len(self.rows):
            lengths = len(self.arrival), len(self.service), len(self.rows)
            raise PlanningError(f"arrival, service and rows have {lengths} entries: give one of each per executor.")

    @classmethod
    def of(cls, job: JobSnapshot, chosen: Cores | NDArray[np.bool_]) -> Queues:
        """Return the queues of some executors of a job, all of which have a service rate.

        Parameters
        ----------
        job : JobSnapshot
            The job's measurements.
        chosen : array of int or bool
            The executors, as indices or as a mask.

        Returns
        -------
        Queues
            One queue per executor.
        """
        return cls(
            job.entering,
            job.arrival_rates[chosen],
            job.service_rates[chosen],
            np.maximum(job.customer_rows[chosen], 1.0),
        )

    @property
    def loads(self) -> Amounts:
        """Load of each executor in cores, λ/μ."""
        return self.arrival / self.service

    def is_stable(self, cores: Cores) -> bool:
        """Return whether the cores of every executor exceed its load, so that no queue grows."""
        return bool((self.loads < cores).all())

    def with_arrival(self, arrival: Amounts, external: float) -> Queues:
        """Return the same executors with other arrivals."""
        return replace(self, arrival=arrival, external=external)

    def scaled(self, factor: float) -> Queues:
        """Return the same executors with arrivals multiplied by a factor."""
        return self.with_arrival(self.arrival * factor, self.external * factor)

    def take(self, chosen: NDArray[np.bool_]) -> Queues:
        """Return some of the executors."""
        return Queues(self.external, self.arrival[chosen], self.service[chosen], self.rows[chosen])

    def latency(self, cores: Cores) -> float:
        """Return the seconds that tuples spend at these executors with the given cores, according to the model.

        Parameters
        ----------
        cores : array of int
            Cores of each executor.

        Returns
        -------
        float
            Seconds; ``inf`` if a queue grows.
        """
        return expected_latency(
            self._entering, self.arrival / self.rows, self.service / self.rows, cores, weight=self.rows
        )

    def fewest(self, target: float, available: int, most: Cores) -> Allocation:
        """Find the fewest cores that meet the target, with no executor above its limit.

        Parameters
        ----------
        target : float
            Seconds; ``inf`` requires only that queues do not grow, 0 or less cannot be met.
        available : int
            Number of cores, at least one per executor.
        most : array of int
            Limit of each executor, at least 1.

        Returns
        -------
        Allocation
            As `dask_elastic.model.jackson.allocate` returns it.

        Notes
        -----
        An executor that exceeds its limit in the unlimited greedy algorithm reaches the limit in the limited one as
        well, since there the others get no less. It is therefore fixed at its limit, and the others share the rest.
        """
        reachable = max(target, _LEAST_TARGET)
        found = self._allocate(reachable, available)
        full = found.cores > most
        if not full.any():
            return Allocation(found.cores, found.latency, found.latency <= target and not math.isinf(found.latency))
        cores, is_open, spent = found.cores.copy(), np.ones(len(most), dtype=np.bool_), 0.0
        while full.any():
            cores[full] = most[full]
            is_open &= ~full
            if not is_open.any():
                break
            spent += self.take(full).latency(cores[full])
            # Where a queue grows at its limit, cores elsewhere cannot make up for it: the others have the target.
            left = reachable if math.isinf(target) or math.isinf(spent) else max(target - spent, _LEAST_TARGET)
            cores[is_open] = self.take(is_open)._allocate(left, available - int(cores[~is_open].sum())).cores
            full = is_open & (cores > most)
        latency = self.latency(cores)
        return Allocation(cores, latency, latency <= target and not math.isinf(latency))

    def best_effort(self, target: float, available: int, most: Cores) -> Allocation:
        """Find the fewest cores that meet the target or, if none do, come within 5 % of the best possible latency.

        Parameters
        ----------
        target : float
            Seconds; ``inf`` requires only that queues do not grow.
        available : int
            Number of cores, at least one per executor.
        most : array of int
            Limit of each executor, at least 1.

        Returns
        -------
        Allocation
            `feasible` tells whether the target is met.

        Notes
        -----
        An executor whose queue grows at its limit, such as one with a hot key, gets so many cores. The others get what
        would be best without it.
        """
        best = self.fewest(target, available, most)
        if best.feasible:
            return best
        growing = (best.cores == most) & (self.loads >= most)
        if growing.any() and not growing.all():
            cores, others = best.cores.copy(), self.take(~growing)
            left = available - int(most[growing].sum())
            cores[~growing] = others.best_effort(target, left, most[~growing]).cores
            return Allocation(cores, math.inf, feasible=False)
        if math.isinf(best.latency):
            return best
        near = self.fewest(best.latency * (1 + _NEAR), available, most)
        return Allocation(near.cores, near.latency, feasible=False)

    @property
    def _entering(self) -> float:
        # While sources send nothing, queues are still drained; the latency is that of their own tuples then.
        return self.external if self.external > 0 else float(self.arrival.sum())

    def _allocate(self, target: float, available: int) -> Allocation:
        arrival, service = self.arrival / self.rows, self.service / self.rows
        return allocate(self._entering, arrival, service, target, available, weight=self.rows)

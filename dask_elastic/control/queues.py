"""Executors of one job as the queues of a Jackson network, with limits on what each may get.

Elasticutor, section 4.1. The customers are sub-batches as tasks take them, so rates are those of tuples divided by
their mean rows, and each customer makes so many tuples wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_elastic.model.jackson import Allocation, allocate, expected_latency
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.snapshot import ExecutorSnapshot

Amounts = NDArray[np.float64]
Cores = NDArray[np.int64]

NO_LIMIT = 1 << 30
"""More cores than any executor could get."""

_NEAR = 0.05
"""Where a target is out of reach, so much more latency than with all cores is good enough: the last bit costs most."""

_LEAST_TARGET = 1e-12
"""Seconds that stand for a target which other parts of the latency have used up."""


@dataclass(frozen=True, eq=False)
class Queues:
    """What arrives at some executors, and how fast each core of them is.

    Parameters
    ----------
    external : float
        Tuples per second that enter the topology.
    arrival : array of float
        Tuples per second that arrive at each executor, λ.
    service : array of float
        Tuples per busy second of one core of each, μ.
    rows : array of float
        Tuples of a customer of each.
    """

    external: float
    arrival: Amounts
    service: Amounts
    rows: Amounts

    def __post_init__(self) -> None:
        if not len(self.arrival) == len(self.service) == len(self.rows):
            lengths = len(self.arrival), len(self.service), len(self.rows)
            raise PlanningError(f"arrival, service and rows have {lengths} entries: give one each for each executor.")

    @classmethod
    def of(cls, executors: Sequence[ExecutorSnapshot], external: float) -> Queues:
        """Return the queues of executors whose service rates are known."""
        return cls(
            external,
            np.array([executor.arrival_rate for executor in executors], dtype=np.float64),
            np.array([executor.service_rate for executor in executors], dtype=np.float64),
            np.array([max(executor.customer_rows, 1.0) for executor in executors], dtype=np.float64),
        )

    @property
    def loads(self) -> Amounts:
        """Cores that would be busy all the time, λ/μ of each executor."""
        return self.arrival / self.service

    def is_stable(self, cores: Cores) -> bool:
        """Tell whether so many cores can do all that arrives."""
        return bool((self.loads < cores).all())

    def with_arrival(self, arrival: Amounts, external: float) -> Queues:
        """Return the same executors with other arrivals."""
        return replace(self, arrival=arrival, external=external)

    def scaled(self, factor: float) -> Queues:
        """Return the same executors with so many times the arrivals."""
        return self.with_arrival(self.arrival * factor, self.external * factor)

    def take(self, chosen: NDArray[np.bool_]) -> Queues:
        """Return some of the executors."""
        return Queues(self.external, self.arrival[chosen], self.service[chosen], self.rows[chosen])

    def latency(self, cores: Cores) -> float:
        """Return the seconds that the model expects tuples to spend at these executors with so many cores."""
        return expected_latency(
            self._entering, self.arrival / self.rows, self.service / self.rows, cores, weight=self.rows
        )

    def fewest(self, target: float, available: int, most: Cores) -> Allocation:
        """Find the fewest cores that keep the target, with no executor above its limit.

        Parameters
        ----------
        target : float
            Seconds; ``inf`` asks for no more than that queues do not grow, 0 or less cannot be met.
        available : int
            How many cores there are, at least one for each executor.
        most : array of int
            Cores that each executor may have at most, at least 1.

        Returns
        -------
        Allocation
            As `dask_elastic.model.jackson.allocate` returns it.

        Notes
        -----
        An executor that the greedy would give more than its limit would reach the limit in a greedy that knows it, too,
        since the others only get more then. So it is fixed there, and the others share what is left.
        """
        found = self._allocate(max(target, _LEAST_TARGET), available)
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
            # What is spent may be infinite, too: without a target nothing is taken off.
            left = target if math.isinf(target) else max(target - spent, _LEAST_TARGET)
            cores[is_open] = self.take(is_open)._allocate(left, available - int(cores[~is_open].sum())).cores
            full = is_open & (cores > most)
        latency = self.latency(cores)
        return Allocation(cores, latency, latency <= target and not math.isinf(latency))

    def best_effort(self, target: float, available: int, most: Cores) -> Allocation:
        """Find the fewest cores that keep the target, or else come within a twentieth of the best latency there is."""
        best = self.fewest(target, available, most)
        if best.feasible or math.isinf(best.latency):
            return best
        near = self.fewest(best.latency * (1 + _NEAR), available, most)
        return Allocation(near.cores, near.latency, feasible=False)

    @property
    def _entering(self) -> float:
        # While sources are silent, queues may still be worked off; the latency is that of their own tuples then.
        return self.external if self.external > 0 else float(self.arrival.sum())

    def _allocate(self, target: float, available: int) -> Allocation:
        arrival, service = self.arrival / self.rows, self.service / self.rows
        return allocate(self._entering, arrival, service, target, available, weight=self.rows)

"""The load of the demonstration: rate, service times and latency target, fitted to the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

WORK = {"per_plane": 0.8, "per_route": 1.8}
"""Work of each stateful operator, in busy cores. A static executor with all hot routes has 1.26 cores of it."""

TRIAL_RATE = 400.0
"""Flights per second of the trial, and the most of the demonstration: few enough to read, many enough to measure."""

LEAST_RATE = 100.0

BEARABLE = 0.6
"""Share of the free processors that the two jobs and their feed may use; the rest is for bursts."""

LEAST_TARGET = 0.2
"""Seconds of the smallest target: while the control loop notices a shift and adds cores, rows wait about half of it."""

MOST_TARGET = 0.6
BUSY_TARGET = 0.8
"""The target if latencies were too uneven at a higher rate: what disturbs them may come again, whatever was measured
last. Half of the seconds of a static job still miss it."""

NOISE = 4.0
"""The target is at least this multiple of the trial's p99, which shows how evenly the machine works."""

LEAST_NOISE = 2.5
"""At the least rate, where nothing else helps, the greatest target need only be this multiple of the trial's p99."""

STEP = 0.05


@dataclass(frozen=True)
class Machine:
    """What a trial has measured, which ran both jobs.

    Parameters
    ----------
    processors : int
        The number of processors.
    others : float
        Processors that were busy with other programs.
    used : float
        Processors that were busy with the trial.
    p99 : float
        The 99th percentile of the trial's latency, in seconds.
    rate : float
        Flights per second of each job of the trial.
    """

    processors: int
    others: float
    used: float
    p99: float
    rate: float = TRIAL_RATE


@dataclass(frozen=True)
class Load:
    """The load of each of the two jobs.

    Parameters
    ----------
    rate : float
        Flights per second.
    target : float
        The target of the mean latency, in seconds.
    """

    rate: float
    target: float

    @property
    def service(self) -> dict[str, float]:
        """Seconds of service time per flight of each stateful operator."""
        return {operator: cores / self.rate for operator, cores in WORK.items()}


def fit(machine: Machine) -> Load | None:
    """Choose the load for a machine: few, slow rows for a small or busy one.

    Parameters
    ----------
    machine : Machine
        What a trial has measured.

    Returns
    -------
    Load or None
        The load; None if the trial's latencies were so uneven that only a lower rate could do, or none.

    Examples
    --------
    >>> fit(Machine(processors=16, others=0.5, used=1.0, p99=0.02))
    Load(rate=400.0, target=0.2)
    >>> fit(Machine(processors=2, others=1.0, used=1.2, p99=0.09))
    Load(rate=200.0, target=0.4)
    >>> fit(Machine(processors=2, others=1.9, used=0.4, p99=0.7))
    """
    noise = LEAST_NOISE if machine.rate <= LEAST_RATE else NOISE
    if noise * machine.p99 > MOST_TARGET:
        return None
    target = math.ceil(NOISE * machine.p99 / STEP) * STEP
    return Load(rate_of(machine), round(min(max(target, LEAST_TARGET), MOST_TARGET), 3))


def lower(machine: Machine) -> float:
    """Return the rate of the next trial after one whose latencies were too uneven."""
    much_too_uneven = NOISE * machine.p99 > 2 * MOST_TARGET
    return LEAST_RATE if much_too_uneven else max(LEAST_RATE, min(machine.rate / 2, rate_of(machine)))


def rate_of(machine: Machine) -> float:
    """Return the flights per second of each job for which there are processors, those of the trial at most."""
    free = max(machine.processors - machine.others, 0.0)
    rate = machine.rate * BEARABLE * free / max(machine.used, 0.01)
    return float(min(max(10 * round(rate / 10), LEAST_RATE), machine.rate))

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

NOISE = 4.0
"""The target is at least this multiple of the trial's p99, which shows how evenly the machine works."""

STEP = 0.05


@dataclass(frozen=True)
class Machine:
    """What the calibration has measured.

    Parameters
    ----------
    processors : int
        The number of processors.
    others : float
        Processors that were busy before the trial, with other programs.
    busy : float
        Processors that were busy during the trial, which ran one job at `TRIAL_RATE`.
    p99 : float
        The 99th percentile of the trial's latency, in seconds.
    """

    processors: int
    others: float
    busy: float
    p99: float


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


def fit(machine: Machine) -> Load:
    """Choose the load for a machine: few, slow rows for a small or busy one.

    Parameters
    ----------
    machine : Machine
        What the calibration has measured.

    Examples
    --------
    >>> fit(Machine(processors=16, others=0.5, busy=1.0, p99=0.02))
    Load(rate=400.0, target=0.2)
    >>> fit(Machine(processors=2, others=1.0, busy=1.6, p99=0.09))
    Load(rate=200.0, target=0.4)
    """
    used = max(machine.busy - machine.others, 0.01)
    free = max(machine.processors - machine.others, 0.0)
    rate = TRIAL_RATE * BEARABLE * free / (2 * used)
    target = math.ceil(NOISE * machine.p99 / STEP) * STEP
    return Load(
        float(min(max(10 * round(rate / 10), LEAST_RATE), TRIAL_RATE)),
        round(min(max(target, LEAST_TARGET), MOST_TARGET), 3),
    )

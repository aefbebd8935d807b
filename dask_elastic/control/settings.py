"""Settings of the control loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_seed, is_number


@dataclass(frozen=True)
class ControlSettings:
    """How fast and how cautiously cores follow the load.

    Parameters
    ----------
    cooldown : float
        Seconds after a change of an executor's cores in which only urgent changes are allowed.
    budget_bytes : float
        Bytes of state that may leave their node in one period.
    release_after : float
        Seconds for which a surplus must last before its cores are released.
    yield_after : float
        Seconds for which a surplus must last before other jobs may take it.
    headroom : float
        Fraction added to the measured arrivals to decide whether an executor gets more cores.
    release_headroom : float
        The same to decide whether it releases cores; larger than `headroom`, so that noise falls into the gap.
    growth : float
        Factor on the throughput of an overloaded job's executors, to estimate its demand.
    saturation : float
        Utilisation from which on an executor may count as overloaded. If tasks are balanced to within a fifth, as by
        default, one task is busy all the time then.
    backlog : float
        Seconds of work that must wait at an executor for it to count as overloaded.
    drain_within : float
        Seconds within which a backlog is to be drained.
    exchange_gain : float
        Fraction by which throughput must rise for an exchange of cores within a job that has all it can get.
    locality_threshold : float
        Data intensity, in bytes per second and core, above which an executor is to have all of its cores at home.
    settle : float
        Seconds between a change of cores and the measurement of its effect on throughput.
    bound_for : float
        Seconds after which a finding that an operator is GIL-bound expires and is tested again.
    seed : int
        Seed of randomised core planners.

    Raises
    ------
    PlanningError
        If a value is not a finite number or is out of range, or `headroom` is not below `release_headroom`.

    Notes
    -----
    `locality_threshold` is φ of Elasticutor, section 4.2 (fifth erratum: bytes in and out, per core).

    Examples
    --------
    >>> ControlSettings().release_after
    10.0
    >>> ControlSettings(growth=0.5)
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.PlanningError: growth is 0.5: give a finite number above 1.
    """

    cooldown: float = 5.0
    budget_bytes: float = 512 * 1024 * 1024
    release_after: float = 10.0
    yield_after: float = 3.0
    headroom: float = 0.1
    release_headroom: float = 0.2
    growth: float = 1.5
    saturation: float = 0.8
    backlog: float = 0.05
    drain_within: float = 3.0
    exchange_gain: float = 0.05
    locality_threshold: float = 512 * 1024
    settle: float = 1.5
    bound_for: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        above = {"growth": 1.0, "drain_within": 0.0, "locality_threshold": 0.0, "saturation": 0.0, "budget_bytes": 0.0}
        for field in fields(self):
            value, least, strict = getattr(self, field.name), above.get(field.name, 0.0), field.name in above
            if not (is_number(value) and math.isfinite(value)) or value < least or (strict and value == least):
                allowed = f"above {least:g}" if strict else "of 0 or more"
                raise PlanningError(f"{field.name} is {value!r}: give a finite number {allowed}.")
        as_seed(self.seed)
        if self.saturation > 1:
            raise PlanningError(f"saturation is {self.saturation!r}: give a fraction of at most 1.")
        if not self.headroom < self.release_headroom:
            raise PlanningError(
                f"headroom is {self.headroom!r}, release_headroom {self.release_headroom!r}: give a release_headroom "
                "above headroom, or cores are released that are needed again at once."
            )

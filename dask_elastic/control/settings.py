"""What the control loop can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class ControlSettings:
    """How quickly, how boldly and how carefully cores follow the load.

    Parameters
    ----------
    cooldown : float
        Seconds that an executor whose cores have changed is left alone, unless it is overloaded.
    budget_bytes : float
        State that may leave its node in one period.
    release_after : float
        Seconds for which a surplus must last before its cores are given back.
    yield_after : float
        Seconds for which a surplus must last before other jobs may take it.
    headroom : float
        Part of the arrivals that is planned for beyond those that are measured, before an executor gets cores.
    release_headroom : float
        The same before it gives cores back; larger than `headroom`, so that noise falls into the gap between.
    growth : float
        Factor by which an overloaded job's demand is taken to be above what its executors achieve.
    saturation : float
        Part of the time that the cores of an executor must be busy on average for it to count as overloaded. With
        tasks balanced to within a fifth, as they are by default, one of them is busy all the time then.
    backlog : float
        Seconds of work that must wait at an executor to count as overloaded.
    drain_within : float
        Seconds within which waiting tuples are to be worked off.
    exchange_gain : float
        Part by which throughput must rise before cores change hands within a job that has all that it can get.
    locality_threshold : float
        Data intensity, in bytes per second and core, above which an executor is to have all of its cores at home.
    settle : float
        Seconds that a change of cores is given before its effect on throughput is judged.
    bound_for : float
        Seconds after which a finding that an operator's threads hold the GIL is put to the test again.
    seed : int
        For core planners that draw lots.

    Raises
    ------
    PlanningError
        If a value is not a finite number, is out of range, or the two headrooms leave no gap.

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
            if not math.isfinite(value) or value < least or (strict and value == least):
                allowed = f"above {least:g}" if strict else "of 0 or more"
                raise PlanningError(f"{field.name} is {value!r}: give a finite number {allowed}.")
        if self.saturation > 1:
            raise PlanningError(f"saturation is {self.saturation!r}: it is a part of 1.")
        if not self.headroom < self.release_headroom:
            raise PlanningError(
                f"headroom is {self.headroom!r}, release_headroom {self.release_headroom!r}: the second has to be "
                "larger, else cores are given back that are wanted again at once."
            )

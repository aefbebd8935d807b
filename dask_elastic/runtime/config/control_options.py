"""How the control loop of a cluster decides: what the Dask configuration of the scheduler says under ``elastic``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import PlanningError, SubmitError

DURATIONS = {"cooldown": "control-cooldown", "release_after": "control-release-after"}
SIZES = {"budget_bytes": "control-budget", "locality_threshold": "control-locality-threshold"}
NUMBERS = {"headroom": "control-headroom", "release_headroom": "control-release-headroom"}
PERIOD = "control-period"


@dataclass(frozen=True)
class ControlOptions:
    """What a cluster's control loop is told.

    Parameters
    ----------
    period : float
        Seconds between two looks at the cluster.
    settings : ControlSettings
        How it decides.
    """

    period: float = 1.0
    settings: ControlSettings = field(default_factory=ControlSettings)


def control_options() -> ControlOptions:
    """Return what the configuration says.

    Raises
    ------
    SubmitError
        If a value makes no sense; names the option.

    Examples
    --------
    >>> control_options().period
    1.0
    """
    period = _parsed(PERIOD, _duration)
    if not period > 0:
        raise SubmitError(f"elastic.{PERIOD} is {dask.config.get(f'elastic.{PERIOD}')!r}: it must be above zero")
    values: dict[str, Any] = {name: _parsed(option, _duration) for name, option in DURATIONS.items()}
    values |= {name: _parsed(option, parse_bytes) for name, option in SIZES.items()}
    values |= {name: _parsed(option, float) for name, option in NUMBERS.items()}
    try:
        return ControlOptions(period, ControlSettings(**values))
    except PlanningError as error:
        raise SubmitError(f"the scheduler's configuration under elastic.control-... is wrong: {error}") from error


def _duration(value: Any) -> float:
    return float(parse_timedelta(value, default="s"))


def _parsed(option: str, parse: Any) -> float:
    value = dask.config.get(f"elastic.{option}")
    try:
        return float(parse(value))
    except (TypeError, ValueError, KeyError) as error:
        raise SubmitError(f"elastic.{option} is {value!r} in the scheduler's configuration: {error}") from error

"""Options of the control loop: from the Dask configuration of the scheduler, under ``elastic``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.settings import ControlSettings
from dask_elastic.runtime.config.parsing import Amount, Count, Duration, Option, Size, configured
from dask_elastic.vocab.errors import PlanningError, SubmitError

PERIOD = Option("period", Duration(), key="control-period")
RETIRE_TIMEOUT = Option("retire_timeout", Duration(positive=False, least=0.0))
SETTINGS = (
    Option("cooldown", Duration(positive=False), key="control-cooldown"),
    Option("release_after", Duration(positive=False), key="control-release-after"),
    Option("budget_bytes", Size(positive=False), key="control-budget"),
    Option("locality_threshold", Size(positive=False), key="control-locality-threshold"),
    Option("headroom", Amount(positive=False), key="control-headroom"),
    Option("release_headroom", Amount(positive=False), key="control-release-headroom"),
)
"""Fields of `ControlSettings`, which checks their ranges."""

PLACEMENT = (
    Option("period", Duration(), key="placement-period"),
    Option("patience", Count(), key="placement-patience"),
    Option("cooldown", Duration(positive=False), key="placement-cooldown"),
    Option("least_gain", Amount(positive=False), key="placement-least-gain"),
    Option("max_moves", Count(), key="placement-max-moves"),
    Option("budget_bytes", Size(positive=False), key="placement-budget"),
    Option("bandwidth", Size(), key="placement-bandwidth"),
)
"""Fields of `PlacementSettings`, which checks their ranges."""


@dataclass(frozen=True)
class ControlOptions:
    """The options of a cluster's control loops.

    Parameters
    ----------
    period : float
        Seconds between two snapshots of the cluster.
    settings : ControlSettings
        The settings of the loop of cores.
    placement : PlacementSettings
        The settings of the loop of homes, with its period.
    retire_timeout : float
        Seconds within which jobs must have left workers that Dask retires.
    """

    period: float = 1.0
    settings: ControlSettings = field(default_factory=ControlSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    retire_timeout: float = 60.0


def control_options() -> ControlOptions:
    """Return the options in the configuration of this process.

    Raises
    ------
    SubmitError
        If an option does not take its value; names the option.

    Examples
    --------
    >>> control_options().period
    1.0
    """
    period = PERIOD.configured()
    settings: dict[str, Any] = {name: float(value) for name, value in configured(SETTINGS).items()}
    placement: dict[str, Any] = dict(configured(PLACEMENT))
    # Shards move instead of a home only where the loop of cores leaves them there.
    placement["locality_threshold"] = settings["locality_threshold"]
    try:
        return ControlOptions(
            period, ControlSettings(**settings), PlacementSettings(**placement), RETIRE_TIMEOUT.configured()
        )
    except PlanningError as error:
        raise SubmitError(
            f"the scheduler's configuration under elastic.control-... or elastic.placement-... is wrong: {error}"
        ) from error

"""Options of a job: what the user gave, else what the Dask configuration says under ``elastic``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_elastic.runtime.job_spec import JobOptions
from dask_elastic.vocab.errors import SubmitError

DURATIONS = ("inbox_time", "queue_time", "balance_interval", "flush_interval", "report_interval")
SIZES = ("channel_window",)
NUMBERS = ("balance_threshold",)
CHOICES = {"on_error": ("fail", "skip")}
NAMES = (*CHOICES, *DURATIONS, *SIZES, *NUMBERS)


def load_defaults() -> None:
    """Make the shipped defaults known to the Dask configuration; what the user configured stays."""
    text = Path(__file__).parent.parent.joinpath("elastic.yaml").read_text(encoding="utf-8")
    dask.config.update_defaults(yaml.safe_load(text))


def job_options(given: dict[str, Any]) -> JobOptions:
    """Complete and check the options of a job.

    Parameters
    ----------
    given : dict
        What the user gave; durations as ``"5ms"`` or seconds, sizes as ``"32MiB"`` or bytes.

    Returns
    -------
    JobOptions
        Seconds, bytes and numbers.

    Raises
    ------
    SubmitError
        If an option is unknown (with the nearest that exists) or its value makes no sense.

    Examples
    --------
    >>> job_options({"inbox_time": "2ms"}).inbox_time
    0.002
    >>> job_options({"inboxtime": "2ms"})
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: there is no option 'inboxtime': did you mean 'inbox_time'?...
    """
    for name in given:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SubmitError(f"there is no option {name!r}: {hint}The options are {', '.join(NAMES)}")
    return JobOptions(**{name: _value(name, given) for name in NAMES})


def _value(name: str, given: dict[str, Any]) -> Any:
    value = given.get(name)
    if value is None:
        value = dask.config.get("elastic." + name.replace("_", "-"))
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise SubmitError(f"{name}={value!r}: choose from {', '.join(map(repr, CHOICES[name]))}")
        return value
    try:
        parsed = _parsed(name, value)
    except (TypeError, ValueError, KeyError) as error:
        kind = "a duration such as '5ms'" if name in DURATIONS else "a size such as '32MiB'"
        raise SubmitError(f"{name}={value!r} is not {'a number' if name in NUMBERS else kind}: {error}") from error
    if not parsed > 0:
        raise SubmitError(f"{name}={value!r} must be above zero")
    if name == "balance_threshold" and parsed < 1:
        raise SubmitError(f"balance_threshold={value!r} must be at least 1, which is perfect balance")
    return parsed


def _parsed(name: str, value: Any) -> float:
    if name in DURATIONS:
        return float(parse_timedelta(value, default="s"))
    if name in SIZES:
        return int(parse_bytes(value))
    return float(value)

"""Options of a job: what the user gave, else what the Dask configuration says under ``elastic``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_elastic.planning.registry import names
from dask_elastic.runtime.protocol.job_spec import PARADIGMS, JobOptions
from dask_elastic.vocab.errors import SubmitError

DURATIONS = (
    "inbox_time", "queue_time", "balance_interval", "flush_interval", "report_interval", "latency_target",
    "watermark_interval", "idle_timeout",
)  # fmt: skip
SIZES = ("channel_window",)
NUMBERS = ("balance_threshold",)
FLAGS = ("dry_run",)
CHOICES = {"on_error": ("fail", "skip"), "planner": names("cores"), "paradigm": PARADIGMS}
NAMES = (*CHOICES, *FLAGS, *DURATIONS, *SIZES, *NUMBERS)
OPTIONAL = frozenset({"latency_target", "idle_timeout"})
"""Options for which None is an answer, not a question."""

TRUTHS = {True: True, False: False, "true": True, "false": False}


def load_defaults() -> None:
    """Make the shipped defaults known to the Dask configuration; what the user configured stays."""
    text = files("dask_elastic").joinpath("elastic.yaml").read_text(encoding="utf-8")
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
            near = _nearest(name, NAMES)
            hint = f"did you mean {near!r}? " if near else ""
            raise SubmitError(f"there is no option {name!r}: {hint}The options are {', '.join(NAMES)}")
    return JobOptions(**{name: _value(name, given) for name in NAMES})


def _nearest(given: Any, names: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(str(given), names, 1)), None)


def _value(name: str, given: dict[str, Any]) -> Any:
    value = given.get(name)
    if value is None and not (name in OPTIONAL and name in given):
        value = dask.config.get("elastic." + name.replace("_", "-"))
    if name in CHOICES:
        if value not in CHOICES[name]:
            near = _nearest(value, CHOICES[name])
            hint = f"; did you mean {near!r}?" if near else ""
            raise SubmitError(f"{name}={value!r}: choose from {', '.join(map(repr, CHOICES[name]))}{hint}")
        return value
    if name in FLAGS:
        text = value.lower() if isinstance(value, str) else value
        if not isinstance(value, bool | str) or text not in TRUTHS:
            raise SubmitError(f"{name}={value!r}: give True or False")
        return TRUTHS[text]
    if value is None and name in OPTIONAL:
        return None
    return _amount(name, value)


def _amount(name: str, value: Any) -> float:
    """Return a duration, a size or a number, all above zero."""
    try:
        parsed = _parsed(name, value)
    except (TypeError, ValueError, KeyError) as error:
        kind = "a duration such as '50ms'" if name in DURATIONS else "a size such as '32MiB'"
        raise SubmitError(f"{name}={value!r} is not {'a number' if name in NUMBERS else kind}") from error
    if not (parsed > 0 and math.isfinite(parsed)):
        raise SubmitError(f"{name}={value!r} must be above zero")
    if name == "balance_threshold" and parsed < 1:
        raise SubmitError(f"balance_threshold={value!r} must be at least 1, which is perfect balance")
    return parsed


def _parsed(name: str, value: Any) -> float:
    if name in NUMBERS or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value) if name not in SIZES else int(value)
    if name in SIZES:
        return int(parse_bytes(value))
    return float(parse_timedelta(value, default="s"))

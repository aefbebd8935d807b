"""What the configuration of a worker says of the worker itself, whatever jobs run on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

from dask_elastic.vocab.errors import SubmitError

MAX_FRAME = 2**30
"""Bytes of a packet that are accepted where the configuration does not say."""

LEAST_FRAME = 64 * 2**20
"""A batch of rows has to fit, and what is sent together with it."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a node behaves towards the others.

    Parameters
    ----------
    max_frame : int
        Bytes of the largest packet that is sent or accepted.
    require_tls : bool
        Whether a job is refused where its rows would go over a network in the clear.
    heartbeat_interval : float
        Seconds between two signs of life to each other node.
    heartbeat_timeout : float
        Seconds of silence after which another node counts as lost.
    memory_pressure, memory_limit : float
        Parts of the worker's memory at which it takes no more tuples, and at which a job has to end.
    """

    max_frame: int = MAX_FRAME
    require_tls: bool = False
    heartbeat_interval: float = 0.5
    heartbeat_timeout: float = 4.0
    memory_pressure: float = 0.7
    memory_limit: float = 0.85

    def __post_init__(self) -> None:
        if self.max_frame < LEAST_FRAME:
            raise SubmitError(f"elastic.max-frame is {self.max_frame}: give at least {LEAST_FRAME // 2**20}MiB")
        if not 0 < 2 * self.heartbeat_interval <= self.heartbeat_timeout:
            raise SubmitError(
                f"elastic.heartbeat-interval is {self.heartbeat_interval:g} s and elastic.heartbeat-timeout "
                f"{self.heartbeat_timeout:g} s: the timeout has to be at least twice the interval"
            )
        if not 0 < self.memory_pressure <= self.memory_limit <= 1:
            raise SubmitError(
                f"elastic.memory-pressure is {self.memory_pressure:g} and elastic.memory-limit {self.memory_limit:g}: "
                "both are parts of a worker's memory, the first not above the second"
            )


def worker_options() -> WorkerOptions:
    """Return what the configuration of this process says.

    Raises
    ------
    SubmitError
        If a value makes no sense; names the option.

    Examples
    --------
    >>> worker_options().heartbeat_interval
    0.5
    """
    return WorkerOptions(
        max_frame=_parsed("max-frame", lambda value: int(parse_bytes(value))),
        require_tls=require_tls(),
        heartbeat_interval=_parsed("heartbeat-interval", _seconds),
        heartbeat_timeout=_parsed("heartbeat-timeout", _seconds),
        memory_pressure=_parsed("memory-pressure", float),
        memory_limit=_parsed("memory-limit", float),
    )


def require_tls() -> bool:
    """Return whether this process refuses networks without TLS.

    Raises
    ------
    SubmitError
        If the configuration says neither yes nor no: guessing would be no security.
    """
    value = dask.config.get("elastic.require-tls")
    text = value.lower() if isinstance(value, str) else value
    if text not in (True, False, "true", "false"):
        raise SubmitError(f"elastic.require-tls is {value!r}: give true or false")
    return text in (True, "true")


def _seconds(value: Any) -> float:
    return float(parse_timedelta(value, default="s"))


def _parsed(option: str, parse: Any) -> Any:
    value = dask.config.get(f"elastic.{option}")
    try:
        return parse(value)
    except (TypeError, ValueError, KeyError) as error:
        raise SubmitError(f"elastic.{option} is {value!r} in the worker's configuration: {error}") from error

"""Options of a worker, for all jobs on it: from its Dask configuration, under ``elastic``."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.runtime.config.parsing import Amount, Duration, Flag, Option, Size, configured
from dask_elastic.vocab.errors import SubmitError

MAX_FRAME = 2**30
"""Bytes of the largest packet, unless the configuration sets them."""

LEAST_FRAME = 64 * 2**20
"""A batch of rows and the messages that are sent with it have to fit into a packet."""

REQUIRE_TLS = Option("require_tls", Flag())
OPTIONS = (
    Option("max_frame", Size(positive=False)),
    REQUIRE_TLS,
    Option("heartbeat_interval", Duration(positive=False)),
    Option("heartbeat_timeout", Duration(positive=False)),
    Option("memory_pressure", Amount(positive=False)),
    Option("memory_limit", Amount(positive=False)),
)
"""Fields of `WorkerOptions`, which checks their ranges."""


@dataclass(frozen=True)
class WorkerOptions:
    """The options of a worker.

    Parameters
    ----------
    max_frame : int
        Bytes of the largest packet that is sent or accepted.
    require_tls : bool
        Whether a job is refused where its rows would go over a network without TLS.
    heartbeat_interval : float
        Seconds between two heartbeats to each other node.
    heartbeat_timeout : float
        Seconds without a message after which another node counts as lost.
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
            raise SubmitError(f"elastic.max-frame={self.max_frame} must be at least {LEAST_FRAME // 2**20}MiB")
        if not 0 < 2 * self.heartbeat_interval <= self.heartbeat_timeout:
            raise SubmitError(
                f"elastic.heartbeat-interval is {self.heartbeat_interval:g} s and elastic.heartbeat-timeout "
                f"{self.heartbeat_timeout:g} s: the timeout has to be at least twice the interval"
            )
        if not 0 < self.memory_pressure <= self.memory_limit <= 1:
            raise SubmitError(
                f"elastic.memory-pressure is {self.memory_pressure:g} and elastic.memory-limit {self.memory_limit:g}: "
                "both are parts of a worker's memory, and the first may not exceed the second"
            )


def worker_options() -> WorkerOptions:
    """Return the options in the configuration of this process.

    Raises
    ------
    SubmitError
        If an option does not take its value; names the option.

    Examples
    --------
    >>> worker_options().heartbeat_interval
    0.5
    """
    return WorkerOptions(**configured(OPTIONS))


def require_tls() -> bool:
    """Return whether this process refuses networks without TLS.

    Raises
    ------
    SubmitError
        If the configuration has neither true nor false.
    """
    return bool(REQUIRE_TLS.configured())

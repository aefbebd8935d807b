"""Where a job stands, from its start to its end."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Where a job stands."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({Status.FINISHED, Status.STOPPED, Status.FAILED})
"""The statuses that a job never leaves."""

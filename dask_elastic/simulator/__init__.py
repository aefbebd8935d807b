"""Runs a job's executors and their drivers on a virtual clock, in one thread, under seeded schedules and faults."""

from __future__ import annotations

from dask_elastic.simulator.checkpoint_commands import CheckpointCommands
from dask_elastic.simulator.checkpoints import SimulatedCheckpoint
from dask_elastic.simulator.disturbances import (
    Balance,
    Cores,
    Disturbance,
    Disturber,
    Flush,
    Move,
    MoveGroups,
    MoveHome,
    Outage,
    random_disturbances,
)
from dask_elastic.simulator.ledger import Ledger
from dask_elastic.simulator.placement import Placement
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.simulator.shrink import shrink
from dask_elastic.simulator.world import World
from dask_elastic.simulator.world_options import WorldOptions

__all__ = [
    "Balance",
    "CheckpointCommands",
    "Cores",
    "Disturbance",
    "Disturber",
    "Flush",
    "Ledger",
    "Move",
    "MoveGroups",
    "MoveHome",
    "Outage",
    "Placement",
    "Schedule",
    "SimulatedCheckpoint",
    "World",
    "WorldOptions",
    "random_disturbances",
    "shrink",
]

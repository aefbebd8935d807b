"""A driver that carries the executors' instructions out on a virtual clock, in one thread, seeded."""

from __future__ import annotations

from dask_elastic.simulator.ledger import Ledger
from dask_elastic.simulator.placement import Placement
from dask_elastic.simulator.schedule import Schedule
from dask_elastic.simulator.world import World, WorldOptions

__all__ = ["Ledger", "Placement", "Schedule", "World", "WorldOptions"]

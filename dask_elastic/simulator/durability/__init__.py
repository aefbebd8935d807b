"""Simulated jobs that restart: storage with faults, sinks that commit, coordinators, and several generations."""

from __future__ import annotations

from dask_elastic.simulator.durability.crash import Crash, random_crashes
from dask_elastic.simulator.durability.durable_job import DurableJob

__all__ = ["Crash", "DurableJob", "random_crashes"]

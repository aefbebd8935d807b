"""The queueing model: how long tuples stay in a topology, and how many cores they need."""

from __future__ import annotations

from dask_elastic.model.jackson import Allocation, allocate, arrivals, expected_latency
from dask_elastic.model.queueing import mmk_sojourn

__all__ = ["Allocation", "allocate", "arrivals", "expected_latency", "mmk_sojourn"]

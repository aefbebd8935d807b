"""The queueing model: the latency of a topology, and the number of cores that a latency target requires.

Notes
-----
Elasticutor, section 4.1, with its first erratum.
"""

from __future__ import annotations

from dask_elastic.model.jackson import Allocation, allocate, arrivals, expected_latency
from dask_elastic.model.queueing import mmk_sojourn

__all__ = ["Allocation", "allocate", "arrivals", "expected_latency", "mmk_sojourn"]

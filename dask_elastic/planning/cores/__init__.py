"""Cores to executors: which nodes give each executor its cores, and which cores it gives back.

Here belongs what reads or returns an assignment of cores, nodes × executors. Placing groups of load on bins is in
`dask_elastic.planning.placement`.

Notes
-----
Elasticutor, section 4.2.
"""

from __future__ import annotations

from dask_elastic.planning.cores.assignment import CoreAssignment, assign_cores, migration_cost

__all__ = ["CoreAssignment", "assign_cores", "migration_cost"]

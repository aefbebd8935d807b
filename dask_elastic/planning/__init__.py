"""Planners: pure functions from a small problem to a solution, which other packages check and carry out.

`cores` assigns cores to executors, `placement` places groups on bins, `intervals` plans state migration over task
intervals; `balance` moves shards between the tasks of one executor, and `initial` places a job when it starts.
`registry` finds every planner by name.

Notes
-----
Elasticutor, sections 3.1 and 4.2; ALBIC, section 4.3; ELB/CLB, sections 3 and 4; State migration, sections 4 to 6. Each
module names its section, and the erratum where it differs from the paper.
"""

from __future__ import annotations

from dask_elastic.planning.balance import ShardMove, balance

__all__ = ["ShardMove", "balance"]

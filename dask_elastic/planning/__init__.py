"""Planners: each turns a small, pure problem into a solution that others vet and carry out.

Notes
-----
Elasticutor, sections 3.1 and 4.2; ALBIC, section 4.3; ELB/CLB, sections 3 and 4; State migration, sections 4 to 6. Each
module names its own section, and the erratum where it does otherwise than the paper.
"""

from __future__ import annotations

from dask_elastic.planning.balance import ShardMove, balance

__all__ = ["ShardMove", "balance"]

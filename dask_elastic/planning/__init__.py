"""Planners: each turns a small, pure problem into a solution that others vet and carry out."""

from __future__ import annotations

from dask_elastic.planning.balance import ShardMove, balance

__all__ = ["ShardMove", "balance"]

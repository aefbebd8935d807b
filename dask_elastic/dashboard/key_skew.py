"""Key skew: how unevenly the load of an operator is spread over its shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

LEAST_LOAD = 0.005
"""Busy seconds per second below which the load of an operator is too small to compare its shards."""


class KeySkew(NamedTuple):
    """The most loaded shard of an operator.

    Parameters
    ----------
    executor : ExecutorId
        Its executor.
    shard : int
        Its number.
    load : float
        The share of one core that it keeps busy.
    share : float
        Its share of the operator's load.
    ratio : float
        Its load over the mean of all shards of the operator; 1 means that there is no skew.
    """

    executor: ExecutorId
    shard: int
    load: float
    share: float
    ratio: float


def by_operator(executors: Iterable[ExecutorSnapshot]) -> dict[str, list[ExecutorSnapshot]]:
    """Group executors by their operators, in order."""
    found: dict[str, list[ExecutorSnapshot]] = {}
    for executor in executors:
        found.setdefault(executor.executor.component, []).append(executor)
    return found


def key_skew(executors: Sequence[ExecutorSnapshot]) -> KeySkew | None:
    """Return the most loaded shard of an operator; None while its shards have hardly any load.

    Parameters
    ----------
    executors : sequence of ExecutorSnapshot
        The operator's executors.

    Examples
    --------
    >>> import numpy as np
    >>> loads = np.array([0.1, 0.6, 0.1, 0.0])
    >>> one = ExecutorSnapshot(ExecutorId("per_route", 2), 0, {0: 1}, 5.0, None, shard_load=loads)
    >>> skew = key_skew([one])
    >>> str(skew.executor), skew.shard, round(skew.share, 2), round(skew.ratio, 2)
    ('per_route[2]', 1, 0.75, 3.0)
    """
    measured = [
        (one.executor, one.shard_load) for one in executors if one.shard_load is not None and len(one.shard_load)
    ]
    total = sum(float(load.sum()) for _, load in measured)
    if total < LEAST_LOAD:
        return None
    executor, loads = max(measured, key=lambda one: float(one[1].max()))
    shard = int(loads.argmax())
    highest = float(loads[shard])
    shards = sum(len(load) for _, load in measured)
    return KeySkew(executor, shard, highest, highest / total, highest * shards / total)

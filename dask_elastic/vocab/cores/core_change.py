"""A change of the cores of one executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class CoreChange:
    """A change of the cores of one executor.

    Parameters
    ----------
    job : str
        The name of the job.
    generation : int
        The generation of the job.
    executor : ExecutorId
        The executor.
    before, after : mapping of int to int
        Cores by node, numbered as in the snapshot; nodes without cores are omitted.
    moved_bytes : float
        Bytes of state that are expected to move to another node.
    """

    job: str
    generation: int
    executor: ExecutorId
    before: Mapping[int, int]
    after: Mapping[int, int]
    moved_bytes: float = 0.0

"""What is measured of a cluster at one moment: all that decisions are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class NodeSnapshot:
    """A Dask worker.

    Parameters
    ----------
    address : str
        How Dask knows it.
    host : str
        The machine; nodes of one machine are nearer to each other than to others.
    cores : int
        Its thread slots.
    retiring : bool
        Whether it is to give up all of its cores.
    """

    address: str
    host: str
    cores: int
    retiring: bool = False


@dataclass(frozen=True, eq=False)
class ExecutorSnapshot:
    """An elastic executor.

    Parameters
    ----------
    executor : ExecutorId
        Which one.
    home : int
        Node of its receiver, emitter and primary state, by its place in the snapshot's nodes.
    cores : mapping of int to int
        Cores that it has, by node.
    arrival_rate : float
        Tuples per second that arrive, λ.
    service_rate : float or None
        Tuples per busy second of one core, μ; None before the first was processed.
    throughput : float
        Tuples per second that were processed.
    customer_rows : float
        Mean number of tuples of a sub-batch, as it reaches a task: the customers of the queue.
    queue : int
        Tuples that wait.
    state_bytes : int
        Size of its state.
    bytes_in, bytes_out : float
        Bytes per second that arrive, and that its outputs have.
    sojourn : float or None
        Mean seconds from a tuple's arrival at the executor to the end of its processing; None without tuples.
    entry : bool
        Whether its tuples come from a source, not from another executor.
    pinned : bool
        Whether somebody set its cores by hand: they are not to be changed.
    moves : int
        Shards that have moved so far.
    shard_load : array of float, optional
        Busy seconds per second of each shard.
    shard_bytes : array of float, optional
        State of each shard.
    """

    executor: ExecutorId
    home: int
    cores: Mapping[int, int]
    arrival_rate: float
    service_rate: float | None
    throughput: float = 0.0
    customer_rows: float = 1.0
    queue: int = 0
    state_bytes: int = 0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    sojourn: float | None = None
    entry: bool = True
    pinned: bool = False
    moves: int = 0
    shard_load: NDArray[np.float64] | None = field(default=None, repr=False)
    shard_bytes: NDArray[np.float64] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("arrival_rate", "throughput", "customer_rows", "queue", "state_bytes", "bytes_in", "bytes_out"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise PlanningError(f"{self.executor}: {name} is {value!r}; it is a number that is not negative.")
        if any(count < 1 for count in self.cores.values()):
            raise PlanningError(f"{self.executor}: cores are {dict(self.cores)}; leave out nodes without cores.")

    @cached_property
    def total_cores(self) -> int:
        """Cores on all nodes."""
        return sum(self.cores.values())

    @cached_property
    def heaviest_shard(self) -> float:
        """The part of its load that its most loaded shard has; 0 where the shards are not measured.

        A shard is processed by one core at a time: an executor of whose load one shard is a third is not made faster by
        more than about three cores, whatever a model says.
        """
        if self.shard_load is None or not len(self.shard_load):
            return 0.0
        total = float(self.shard_load.sum())
        return float(self.shard_load.max()) / total if total > 0 else 0.0


@dataclass(frozen=True, eq=False)
class JobSnapshot:
    """A job that runs.

    Parameters
    ----------
    name : str
        Its name.
    generation : int
        Which run of that name.
    executors : tuple of ExecutorSnapshot
        Its executors, ordered by operator and number.
    latency_target : float or None
        Seconds within which the mean tuple is to be processed.
    paradigm : str
        How it is elastic: ``"executor-centric"`` or ``"static"``.
    planner : str
        Who assigns cores to its executors.
    dry_run : bool
        Whether decisions are only said.
    latency : float or None
        Measured mean seconds from the scheduled emission at the source to the end of processing by the last operator.
    latency_p99 : float or None
        The same that 99 % of the tuples do not exceed.
    """

    name: str
    generation: int
    executors: tuple[ExecutorSnapshot, ...]
    latency_target: float | None = None
    paradigm: str = "executor-centric"
    planner: str = "elasticutor"
    dry_run: bool = False
    latency: float | None = None
    latency_p99: float | None = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The cluster at one moment.

    Parameters
    ----------
    now : float
        When, in seconds.
    nodes : tuple of NodeSnapshot
        The workers; everything else knows them by their place here.
    jobs : tuple of JobSnapshot
        The jobs that run.

    Raises
    ------
    PlanningError
        If an executor's home or cores are on a node that is not there.
    """

    now: float
    nodes: tuple[NodeSnapshot, ...]
    jobs: tuple[JobSnapshot, ...]

    def __post_init__(self) -> None:
        for job in self.jobs:
            for executor in job.executors:
                for node in (executor.home, *executor.cores):
                    if not 0 <= node < len(self.nodes):
                        raise PlanningError(
                            f"{executor.executor} of job {job.name!r} is on node {node}: there are {len(self.nodes)}."
                        )

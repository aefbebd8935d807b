"""Snapshots: all measurements of a cluster at one time, the only input of decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.compute_measure import ComputeMeasure
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.row_counts import RowCounts

_AT_ONCE = 128
"""Executors whose loads of shards are compared at a time."""


@dataclass(frozen=True)
class NodeSnapshot:
    """A Dask worker.

    Parameters
    ----------
    address : str
        The address of the Dask worker.
    host : str
        The machine; nodes on one machine are nearer to each other than to other nodes.
    cores : int
        The number of its thread slots.
    retiring : bool
        Whether it is being retired and must give up all of its cores.
    memory : int
        Bytes of memory that it may use; 0 if that is not known.
    """

    address: str
    host: str
    cores: int
    retiring: bool = False
    memory: int = 0


class Traffic(NamedTuple):
    """Bytes that an executor gets from one upstream instance.

    Parameters
    ----------
    component : str
        The component of the upstream instance, a source or a stateful operator.
    index : int
        The number of the instance.
    rate : float
        Bytes per second.
    """

    component: str
    index: int  # type: ignore[assignment]
    rate: float


class Inputs(Sequence[Traffic]):
    """The traffic to one executor from all upstream instances, in columns: a large cluster has many of them.

    Parameters
    ----------
    components : tuple of str
        The component of each upstream instance.
    indexes : array of int
        The number of each one.
    rates : array of float
        Bytes per second from each one.

    Examples
    --------
    >>> inputs = Inputs.of([("rows", 0, 9.0), ("rows", 1, 4.0)])
    >>> inputs[0], len(inputs), inputs == (Traffic("rows", 0, 9.0), Traffic("rows", 1, 4.0))
    (Traffic(component='rows', index=0, rate=9.0), 2, True)
    """

    __slots__ = ("components", "indexes", "rates")

    def __init__(self, components: tuple[str, ...], indexes: NDArray[np.int64], rates: NDArray[np.float64]):
        self.components = components
        self.indexes = indexes
        self.rates = rates

    @staticmethod
    def of(traffic: Iterable[tuple[str, int, float]]) -> Inputs:
        """Return traffic in columns."""
        if isinstance(traffic, Inputs):
            return traffic
        if not (traffic := tuple(traffic)):
            return _NO_INPUTS
        components, indexes, rates = zip(*traffic, strict=True)
        return Inputs(components, np.array(indexes, dtype=np.int64), np.array(rates, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.components)

    @overload
    def __getitem__(self, place: int) -> Traffic: ...

    @overload
    def __getitem__(self, place: slice) -> Inputs: ...

    def __getitem__(self, place: int | slice) -> Traffic | Inputs:
        if isinstance(place, slice):
            return Inputs(self.components[place], self.indexes[place], self.rates[place])
        return Traffic(self.components[place], int(self.indexes[place]), float(self.rates[place]))

    def __iter__(self) -> Iterator[Traffic]:
        return map(Traffic, self.components, self.indexes.tolist(), self.rates.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


_NO_INPUTS = Inputs((), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
"""One for all executors without traffic: garbage collection, which stops all threads, visits each object."""


class SourceHome(NamedTuple):
    """The node of an instance of a source.

    Parameters
    ----------
    component : str
        The source.
    index : int
        The number of the instance.
    node : int
        The node, as an index into the snapshot's nodes.
    """

    component: str
    index: int  # type: ignore[assignment]
    node: int


@dataclass(frozen=True, eq=False)
class ExecutorSnapshot:
    """An elastic executor.

    Parameters
    ----------
    executor : ExecutorId
        Its identifier.
    home : int
        The node of its receiver, emitter and primary state, as an index into the snapshot's nodes.
    cores : mapping of int to int
        Its cores by node.
    arrival_rate : float
        Arriving tuples per second, λ.
    service_rate : float or None
        Tuples per busy second of one core, μ; None until the first tuple was processed.
    throughput : float
        Processed tuples per second.
    customer_rows : float
        The mean number of tuples of a sub-batch that reaches a task, which is one customer of the queueing model.
    queue : int
        Queued tuples.
    state_bytes : int
        The size of its state, in bytes.
    bytes_in, bytes_out : float
        Bytes per second of its inputs and of its outputs.
    sojourn : float or None
        The mean time from a tuple's arrival at the executor to the end of its processing, in seconds; None if no tuple
        was processed.
    entry : bool
        Whether its input comes from a source rather than from another executor.
    pinned : bool
        Whether a user fixed its cores, so that the control loop leaves them unchanged.
    moves : int
        The number of shard moves so far.
    state_on_disk : int
        The part of `state_bytes` that is in files.
    windows : RowCounts or None
        What became of the rows of an operator with windows; None without any.
    open_windows : int or None
        Instances of its windows that are open, or slices of these, counted per key; waiting rows of a join.
    computes : tuple of ComputeMeasure
        Each of several computes that run in its tasks; empty if there is only one.
    event_time : int or None
        Its watermark, microseconds since the Unix epoch.
    traffic : sequence of Traffic
        Its inputs by upstream instance, heaviest first; with many instances only the heaviest ones.
    hop : float or None
        Seconds of a round trip between its home and its tasks on other nodes; None without any.
    enough_cores : int or None
        Cores of each node that it has measured to be as fast as any more; None if that is not known.
    shard_load : array of float, optional
        Busy seconds per second of each shard; of each key group where these move, what arriving rows require.
    shard_bytes : array of float, optional
        Bytes of state of each shard.
    flows : tuple of GroupFlow
        Sampled traffic from its key groups to those of other operators, where groups move.
    groups : array of int, optional
        The key groups that it owns; None where groups do not move.

    Attributes
    ----------
    total_cores : int
        Cores on all nodes.
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
    state_on_disk: int = 0
    windows: RowCounts | None = None
    open_windows: int | None = None
    computes: tuple[ComputeMeasure, ...] = ()
    event_time: int | None = None
    traffic: Sequence[Traffic] = ()
    hop: float | None = None
    enough_cores: int | None = None
    shard_load: NDArray[np.float64] | None = field(default=None, repr=False)
    shard_bytes: NDArray[np.float64] | None = field(default=None, repr=False)
    flows: tuple[GroupFlow, ...] = field(default=(), repr=False)
    groups: NDArray[np.int64] | None = field(default=None, repr=False)
    # Set on each instance; not a field, since it follows from `cores`.
    total_cores: ClassVar[int]

    def __post_init__(self) -> None:
        for name in ("arrival_rate", "throughput", "customer_rows", "queue", "state_bytes", "bytes_in", "bytes_out"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise PlanningError(f"{self.executor}: {name} is {value!r}; it must be a finite number, 0 or more.")
        if any(count < 1 for count in self.cores.values()):
            raise PlanningError(f"{self.executor}: cores are {dict(self.cores)}; omit nodes without cores.")
        object.__setattr__(self, "traffic", Inputs.of(self.traffic))
        # A decision reads this many times, and a cached property of Python 3.11 takes a lock.
        object.__setattr__(self, "total_cores", sum(self.cores.values()))

    @property
    def working_cores(self) -> int:
        """Cores without those that do not speed it up."""
        most = self.enough_cores
        return self.total_cores if most is None else sum(min(count, most) for count in self.cores.values())

    @property
    def heaviest_shard(self) -> float:
        """The fraction of its load that its most loaded shard carries; 0 if shards are not measured.

        One core at a time processes a shard: if one shard carries a third of the load, the executor gains nothing from
        more than about three cores.
        """
        # Not a cached property, with which each of the many kept instances would have a dictionary of its own.
        if self.shard_load is None or not len(self.shard_load):
            return 0.0
        total = float(np.add.reduce(self.shard_load))
        return float(np.maximum.reduce(self.shard_load)) / total if total > 0 else 0.0


@dataclass(frozen=True, eq=False)
class JobSnapshot:
    """A running job.

    Parameters
    ----------
    name : str
        The name of the job.
    generation : int
        The generation of the job.
    executors : tuple of ExecutorSnapshot
        Its executors, ordered by operator and number.
    latency_target : float or None
        The target of the mean latency, in seconds.
    paradigm : str
        ``"executor-centric"``, ``"resource-centric"`` or ``"static"``.
    planner : str
        The name of the planner that assigns cores to its executors.
    placement : str
        The name of the planner that places the homes of its executors.
    sources : tuple of SourceHome
        The nodes of its sources.
    dry_run : bool
        Whether decisions are recorded but not carried out.
    latency : float or None
        The mean latency from the scheduled emission at the source to the end of processing by the last operator, in
        seconds.
    latency_p99 : float or None
        The 99th percentile of that latency, in seconds.
    source_rate : float
        Rows per second that its sources read.
    source_lag : float
        Seconds by which rows leave its sources late, at the instance where they are latest.
    event_time : int or None
        The newest watermark of its sources, microseconds since the Unix epoch.
    strategies : mapping of str to str
        How key groups of each operator move, one of `GROUP_STRATEGIES`; empty where groups do not move.
    group_moves : tuple of EndedGroupMove
        The newest moves of key groups, oldest first. One move is in several snapshots.
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
    source_rate: float = 0.0
    source_lag: float = 0.0
    event_time: int | None = None
    placement: str = "spread"
    sources: tuple[SourceHome, ...] = ()
    strategies: Mapping[str, str] = field(default_factory=dict)
    group_moves: tuple[EndedGroupMove, ...] = ()

    @cached_property
    def total_cores(self) -> NDArray[np.int64]:
        """Cores of each executor on all nodes."""
        return np.array([executor.total_cores for executor in self.executors], dtype=np.int64)

    @cached_property
    def working_cores(self) -> NDArray[np.int64]:
        """Cores of each executor without those that do not speed it up."""
        if all(executor.enough_cores is None for executor in self.executors):
            return self.total_cores
        return np.array([executor.working_cores for executor in self.executors], dtype=np.int64)

    @cached_property
    def arrival_rates(self) -> NDArray[np.float64]:
        """Arriving tuples per second of each executor, λ."""
        return np.array([executor.arrival_rate for executor in self.executors], dtype=np.float64)

    @cached_property
    def service_rates(self) -> NDArray[np.float64]:
        """Tuples per busy second of one core of each executor, μ; 0 until the first tuple was processed."""
        return np.array([executor.service_rate or 0.0 for executor in self.executors], dtype=np.float64)

    @cached_property
    def throughputs(self) -> NDArray[np.float64]:
        """Processed tuples per second of each executor."""
        return np.array([executor.throughput for executor in self.executors], dtype=np.float64)

    @cached_property
    def customer_rows(self) -> NDArray[np.float64]:
        """Mean tuples of a sub-batch that reaches a task of each executor."""
        return np.array([executor.customer_rows for executor in self.executors], dtype=np.float64)

    @cached_property
    def queues(self) -> NDArray[np.float64]:
        """Queued tuples of each executor."""
        return np.array([executor.queue for executor in self.executors], dtype=np.float64)

    @cached_property
    def pinned(self) -> NDArray[np.bool_]:
        """Whether a user fixed the cores of each executor."""
        return np.array([executor.pinned for executor in self.executors], dtype=np.bool_)

    @cached_property
    def entering(self) -> float:
        """Tuples per second that arrive from sources, at all executors."""
        return sum(executor.arrival_rate for executor in self.executors if executor.entry)

    @cached_property
    def sojourn(self) -> float | None:
        """The measured seconds that a tuple spends in all executors that it passes; None if unknown."""
        busy = [one for one in self.executors if one.arrival_rate > 0]
        if not busy or self.entering <= 0 or any(one.sojourn is None or not one.service_rate for one in busy):
            return None
        return sum(one.arrival_rate * (one.sojourn or 0.0) for one in busy) / self.entering

    @cached_property
    def heaviest_shards(self) -> NDArray[np.float64]:
        """The fraction of its load that the most loaded shard of each executor carries, as `heaviest_shard` of each."""
        found = np.zeros(len(self.executors))
        loads = [
            (i, e.shard_load) for i, e in enumerate(self.executors) if e.shard_load is not None and len(e.shard_load)
        ]
        # As many at a time as stay in the processor's cache.
        for start in range(0, len(loads), _AT_ONCE):
            indices, arrays = zip(*loads[start : start + _AT_ONCE], strict=True)
            flat, first = np.concatenate(arrays), np.cumsum([0, *map(len, arrays[:-1])])
            total = np.add.reduceat(flat, first)
            heaviest = np.maximum.reduceat(flat, first)
            found[list(indices)] = np.divide(heaviest, total, out=np.zeros(len(total)), where=total > 0)
        return found


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The cluster at one time.

    Parameters
    ----------
    now : float
        The time of the snapshot, in seconds.
    nodes : tuple of NodeSnapshot
        The workers; all other fields refer to them by their index here.
    jobs : tuple of JobSnapshot
        The running jobs.

    Raises
    ------
    PlanningError
        If an executor's home or cores are on a node that the snapshot lacks.
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
                            f"{executor.executor} of job {job.name!r} is on node {node}, but the snapshot has "
                            f"{len(self.nodes)} nodes."
                        )

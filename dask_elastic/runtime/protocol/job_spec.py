"""A job as the client submits it and the scheduler places it: structure, options, nodes, homes and cores."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.shared_methods import SharedMethods

STATIC = "static"
ELASTIC = "executor-centric"
RESOURCE = "resource-centric"
PARADIGMS = (ELASTIC, STATIC, RESOURCE)
"""How a job may be elastic."""

VACANT = ""
"""Address at the place of a node that has left a job; the next node that joins takes the place."""


class JobGeneration(NamedTuple):
    """One start of a job; every message about the job carries it, so that those of earlier starts are refused.

    Parameters
    ----------
    job : str
        The name of the job.
    generation : int
        The number of the start; a job that is submitted again under its name has another one.
    """

    job: str
    generation: int


class JobOptions(SharedMethods):
    """The options of a job; durations in seconds, sizes in bytes.

    Parameters
    ----------
    on_error : str
        "fail" or "skip": whether a row for which user code raises fails the job or becomes a dead letter.
    inbox_time : float
        Seconds of work that a task may have taken from its queue.
    balance_interval : float
        Seconds between two balancings of an executor.
    balance_threshold : float
        Ratio of the largest to the mean task load above which shards move.
    light_load : float
        Busy cores of an executor up to which its shards stay at its home, or return there.
    gather_shards : bool
        Whether the shards of an executor gather on some of its tasks on a worker if that is faster.
    flush_interval : float
        Seconds between two flushes of a remote task's state.
    channel_window : int
        Bytes that an upstream instance may have unprocessed at one executor.
    queue_time : float
        Seconds of an executor's work that an upstream instance may have unprocessed there.
    report_interval : float
        Seconds between two reports of a worker.
    latency_target : float or None
        Seconds within which the mean tuple is to be processed; None leaves the cores as they are.
    planner : str
        The name of the planner that assigns cores to executors.
    paradigm : str
        How the job is elastic: one of `PARADIGMS`.
    dry_run : bool
        Whether decisions are logged and not carried out.
    longest_tick : float
        Seconds between two ticks at which the rows of sources with a rate leave, at most.
    watermark_interval : float
        Seconds between two watermarks of a source, at least.
    idle_timeout : float or None
        Seconds without a row after which an instance of a source is idle and holds no watermark back; None is never.
    checkpoint : str or None
        The folder of the job's checkpoints, a local path or a URL; None for a job without checkpoints.
    checkpoint_interval : float
        Seconds between two checkpoints.
    checkpoint_keep : int
        How many complete checkpoints are kept.
    restart_attempts : int
        How often a job is restarted without a new checkpoint in between, before it fails.
    stall_after : float or None
        Seconds after which a call of user code that has not returned is reported; None is never.
    state_store : str
        Where operators keep their state, unless they say otherwise: one of `STORES`.
    migration : str
        How shards move between nodes, one of `dask_elastic.migration.strategy.STRATEGIES`.
    migration_of : dict of str to str
        The same for some computes, by name.
    state_memory : float
        With "auto", the share of a worker's memory above which the state of the job there moves to disk.
    placement : str
        The name of the planner that places the homes of executors, or "spread".
    """

    on_error: str
    inbox_time: float
    balance_interval: float
    balance_threshold: float
    light_load: float
    flush_interval: float
    channel_window: int
    queue_time: float
    report_interval: float
    latency_target: float | None
    planner: str
    paradigm: str
    dry_run: bool
    watermark_interval: float = 0.1
    longest_tick: float = 0.02
    idle_timeout: float | None = None
    checkpoint: str | None = None
    checkpoint_interval: float = 10.0
    checkpoint_keep: int = 2
    restart_attempts: int = 5
    stall_after: float | None = None
    state_store: str = "memory"
    state_memory: float = 0.4
    placement: str = "spread"
    gather_shards: bool = True
    migration: str = "labelled"
    migration_of: dict[str, str] = field(default_factory=dict)

    def strategy(self, operator: str) -> str:
        """Return how the shards of a compute move between nodes."""
        return self.migration_of.get(operator, self.migration)


class ComputeSummary(NamedTuple):
    """One of the computes of a stateful component, without user code.

    Parameters
    ----------
    name : str
        Its name.
    keys : tuple of str
        Its key columns.
    empty_state : bytes or None
        Its state before the first row, as an Arrow IPC stream.
    reading : bytes or None
        How its state is read from a checkpoint as values: a pickled `Pickled`; None in a job without checkpoints.
    routed_by : tuple of str
        The key columns that decide in which shard a key is.
    windowing : bytes or None
        Its windows: a pickled `Windowing`; None without any.
    """

    name: str
    keys: tuple[str, ...] = ()
    empty_state: bytes | None = None
    reading: bytes | None = None
    routed_by: tuple[str, ...] = ()
    windowing: bytes | None = None


class ComponentSummary(SharedMethods):
    """The structure of a component without user code, as the scheduler needs it for placement.

    Parameters
    ----------
    name, kind : str
        Its name, and "source", "compute" or "sink".
    inputs, operators : tuple of str
        The components before it, and the operators that are fused into it.
    instances : int or None
        Instances of a source or executors of a stateful component; None leaves the number to the scheduler.
    shards : int
        Shards of each executor.
    pushed : bool
        Whether a client sends the rows of the source.
    epochs : int
        Epochs that may wait at an instance of a source for Spark; 0 for all others.
    accepts_resets : bool
        Whether such a source accepts queries that skip epochs or repeat their input.
    spooled : bool
        Whether rows are written to the folder of checkpoints before they are acknowledged to their sender.
    sent_schema : bytes or None
        The schema that the source declares for the rows that clients send, as an Arrow IPC message.
    empty_state : bytes or None
        The state of a stateful component before its first row, as an Arrow IPC stream.
    keys : tuple of str
        The key columns of a stateful component.
    reading : bytes or None
        How its state is read from a checkpoint as values: a pickled `Pickled`; None in a job without checkpoints.
    kinds : tuple of str
        The kind of each of `operators`.
    edges : tuple of (str, str)
        Producer and consumer of each stream that begins in the component.
    fused : tuple of ComputeSummary
        The computes that run in its tasks behind the first one.
    windowing : bytes or None
        The windows of the first compute of a stateful component: a pickled `Windowing`; None without any.
    rate : float or None
        Rows per second that a source declares, of all its instances; None if it declares none.
    configuration : str
        How a stateful component may be migrated, split and combined; see `topology.windows.configuration`.
    routed_by : tuple of str
        The key columns of a stateful component that decide in which shard a key is.
    lossy : bool
        Whether a restart loses rows of it: of a source that cannot rewind, or a sink that promises "at-most-once".
    connector : str
        The class of this package of a source or sink, such as "sources.Arrow", and what its offsets depend on; empty
        for one without, and in checkpoints of earlier versions.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    operators: tuple[str, ...]
    instances: int | None
    shards: int
    pushed: bool = False
    epochs: int = 0
    accepts_resets: bool = False
    spooled: bool = False
    sent_schema: bytes | None = None
    empty_state: bytes | None = None
    keys: tuple[str, ...] = ()
    reading: bytes | None = None
    kinds: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    fused: tuple[ComputeSummary, ...] = ()
    windowing: bytes | None = None
    rate: float | None = None
    configuration: str = ""
    routed_by: tuple[str, ...] = ()
    lossy: bool = False
    connector: str = ""

    @property
    def computes(self) -> tuple[ComputeSummary, ...]:
        """The computes that run in its tasks, the first one first; none of a source or sink."""
        if self.kind != "compute":
            return ()
        own = (self.name, self.keys, self.empty_state, self.reading, self.routed_by, self.windowing)
        return ComputeSummary(*own), *self.fused

    @property
    def windowings(self) -> tuple[tuple[str, bytes], ...]:
        """The windows of each compute that has some."""
        return tuple((compute.name, compute.windowing) for compute in self.computes if compute.windowing is not None)

    def empty_state_of(self, operator: str) -> bytes | None:
        """Return the state of one of its computes before the first row, as an Arrow IPC stream."""
        return next((compute.empty_state for compute in self.computes if compute.name == operator), None)


class CheckpointPlan(SharedMethods):
    """Where a job keeps its checkpoints, and from which one it starts.

    Parameters
    ----------
    url : str
        The folder.
    number : int
        The checkpoint from which this start of the job restores its state; 0 for none.
    restarts : int
        How often the job was restarted before this start.
    opened : tuple of str
        The sinks of which a writer has opened in this run before there was a checkpoint.
    """

    url: str
    number: int = 0
    restarts: int = 0
    opened: tuple[str, ...] = ()


class JobSpec(SharedMethods):
    """A job's part for one node.

    Parameters
    ----------
    job : str
        The name of the job.
    generation : int
        The number of this start of the job; see `JobGeneration`.
    nodes : tuple of str
        Address of each node, `VACANT` for one that has left; nodes are identified by their place here.
    node : int
        The node that this part is for.
    summaries : tuple of ComponentSummary
        The structure.
    homes : dict of str to tuple of int
        Node of each instance of each source and each stateful component.
    cores : dict of str to tuple of dict
        Cores of each executor at the start, by node.
    options : JobOptions
        The options.
    guests : tuple of int
        Nodes that joined while the job ran, or that are about to leave. They host remote tasks only, so that the job
        survives their loss.
    incarnation : int
        The number of the joining of which this part is; the scheduler refuses reports of a node's earlier parts.
    run : str
        Random identifier of this run of the job, which restarts from checkpoints keep. Unlike generations, it never
        repeats: these start again at 1 with the scheduler.
    checkpoint : CheckpointPlan or None
        The job's checkpoints; None for a job without.
    separate : tuple of str
        Computes whose rows are added to instances of windows from the start, though they might share slices.
    groups : dict of str to tuple of int
        The executor of each key group at the start, by stateful component; empty unless key groups move.
    """

    job: str
    generation: int
    nodes: tuple[str, ...]
    node: int
    summaries: tuple[ComponentSummary, ...]
    homes: dict[str, tuple[int, ...]]
    cores: dict[str, tuple[dict[int, int], ...]]
    options: JobOptions
    guests: tuple[int, ...] = ()
    incarnation: int = 0
    run: str = ""
    checkpoint: CheckpointPlan | None = None
    separate: tuple[str, ...] = ()
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def generation_id(self) -> JobGeneration:
        """The job and its generation."""
        return JobGeneration(self.job, self.generation)

    @cached_property
    def members(self) -> tuple[tuple[int, str], ...]:
        """Place and address of every node that has not left."""
        return tuple((node, address) for node, address in enumerate(self.nodes) if address != VACANT)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of every node that has not left, by its address."""
        return {address: node for node, address in self.members}

    @property
    def settled(self) -> frozenset[int]:
        """Nodes that are the home of an executor or run a source; sinks run on the same nodes."""
        return frozenset(node for homes in self.homes.values() for node in homes)

    def with_guest(self, address: str) -> JobSpec:
        """Return the spec with one more node, at the first vacant place."""
        nodes = list(self.nodes)
        place = nodes.index(VACANT) if VACANT in nodes else len(nodes)
        nodes[place : place + 1] = [address]
        return replace(self, nodes=tuple(nodes), guests=(*self.guests, place))

    def without(self, address: str) -> JobSpec:
        """Return the spec without a node; the others keep their places."""
        place = self.places[address]
        nodes = (*self.nodes[:place], VACANT, *self.nodes[place + 1 :])
        return replace(self, nodes=nodes, guests=tuple(guest for guest in self.guests if guest != place))

    def summary(self, component: str) -> ComponentSummary:
        """Return the summary of a component."""
        return next(s for s in self.summaries if s.name == component)

    def component_of(self, operator: str) -> str:
        """Return the component in whose tasks an operator's state is: itself, unless it is fused behind another."""
        return next((s.name for s in self.summaries for one in s.fused if one.name == operator), operator)

    def states(self, component: str) -> list[ExecutorId]:
        """Return what has state in a stateful component: each of its computes, in each of its executors."""
        executors = range(len(self.homes[component]))
        return [ExecutorId(one.name, index) for one in self.summary(component).computes for index in executors]

    def instances(self, component: str) -> list[ExecutorId]:
        """Return all instances of a source or a stateful component."""
        return [ExecutorId(component, index) for index in range(len(self.homes[component]))]

    def node_of(self, instance: ExecutorId) -> int:
        """Return the home of an instance; a sink's instances are numbered by node."""
        homes = self.homes.get(instance.component)
        return instance.index if homes is None else homes[instance.index]

    def inputs_of(self, component: str) -> list[ExecutorId]:
        """Return the instances whose rows a stateful component receives."""
        return [i for name in self.summary(component).inputs for i in self.instances(name)]

    def sink_inputs(self, component: str, node: int) -> list[ExecutorId]:
        """Return the instances whose rows the instance of a sink on a node receives."""
        return [i for i in self.inputs_of(component) if self.node_of(i) == node]

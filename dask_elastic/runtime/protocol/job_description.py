"""A job as the scheduler describes it to clients, and what clients may ask about its executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dask_elastic.runtime.protocol.job_status import ENDED, Status
from dask_elastic.runtime.protocol.reports import EdgeRate, ExecutorReport, InstanceRows, InstanceTime, StalledCall
from dask_elastic.vocab.checkpoint import CheckpointStatus
from dask_elastic.vocab.epoch import HandoffProgress
from dask_elastic.vocab.shared_methods import SharedMethods


class ComponentDescription(NamedTuple):
    """A component of a job.

    Parameters
    ----------
    name, kind : str
        Its name, and "source", "compute" or "sink".
    inputs, operators : tuple of str
        The components before it, and the operators that are fused into it.
    pushed : bool
        Whether a client sends the rows of the source.
    kinds : tuple of str
        The kind of each of `operators`.
    windowings : tuple of (str, bytes)
        The windows of each compute that has some: a pickled `Windowing`.
    configuration : str
        How a stateful component may be migrated, split and combined; see `topology.windows.configuration`.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    operators: tuple[str, ...]
    pushed: bool
    kinds: tuple[str, ...] = ()
    windowings: tuple[tuple[str, bytes], ...] = ()
    configuration: str = ""

    @property
    def computes(self) -> tuple[str, ...]:
        """The computes that run in its tasks, the first one first."""
        return tuple(name for name, kind in zip(self.operators, self.kinds, strict=False) if kind == "compute")


class ControlView(SharedMethods):
    """The control loop's view of a job.

    Parameters
    ----------
    predicted : float or None
        Mean seconds from source to end of processing that the model expects of the cores.
    feasible : bool
        Whether any number of cores reaches the latency target.
    starved : int
        Cores that are lacking.
    bound : tuple of str
        Operators whose threads hold the GIL, so that more cores on one worker do not help.
    decided, decided_at : str, float or None
        The reason and the time of the newest decision; seconds since the epoch.
    control_error : str or None
        The error of the control loop's last period.
    measured : float or None
        Mean seconds from source to end of processing in the last period that the job was running.
    """

    predicted: float | None = None
    feasible: bool = True
    starved: int = 0
    bound: tuple[str, ...] = ()
    decided: str | None = None
    decided_at: float | None = None
    control_error: str | None = None
    measured: float | None = None


class SharingStatus(NamedTuple):
    """How a windowed compute keeps its partials now.

    Parameters
    ----------
    operator : str
        The operator.
    mode : str
        "slices", "instances", or "auto" if the cost model chooses.
    partials : str
        The present plan: "slices" or "instances".
    close_limit : float or None
        See `job_calls.ShareWindows`.
    changed : float or None
        When the plan changed last, in seconds since the epoch; None if it never has.
    since : int or None
        The event time from which on it holds, in microseconds since the epoch.
    late : int
        The executors that had passed this time and changed at once.
    reason : str
        Why it is the plan.
    """

    operator: str
    mode: str
    partials: str
    close_limit: float | None
    changed: float | None
    since: int | None
    late: int
    reason: str


class JobDescription(SharedMethods):
    """A job with its newest measures.

    Parameters
    ----------
    name : str
        The name of the job.
    generation : int
        The number of this start of the job.
    status : Status
        Its status.
    error : bytes or None
        The error that it failed with, see `load_error`.
    began, ended : float, and float or None
        Seconds since the epoch.
    oversubscribed : bool
        Whether executors share slots.
    latency_target, planner, paradigm, dry_run
        Its options, see `JobOptions`.
    pinned : tuple of (str, int)
        Executors whose cores a user has set.
    nodes : tuple of str
        Address of each node; empty for one that has left.
    components : tuple of ComponentDescription
        Its structure.
    executors : tuple of ExecutorReport
        The measures of its executors.
    sources, sinks : tuple of InstanceRows
        Rows that were read and written since the job or its last restart began.
    event_times : tuple of InstanceTime
        Watermarks.
    dead_letters : dict of str to int
        Rows for which user code raised, by operator.
    refused : int
        Stale and duplicate messages, and reports of nodes that had left.
    handoffs : tuple of HandoffProgress
        How far Spark's handoff to each source is.
    control : ControlView
        The control loop's view.
    silent : tuple of str
        Workers that were left out at the start because they did not answer, and that have not joined since.
    edges : tuple of EdgeRate
        Rows per second that each operator passes to each consumer of it.
    stalled : tuple of StalledCall
        Calls of user code that do not return, oldest first.
    run : str
        The random identifier of this run, which restarts keep.
    sharing : tuple of SharingStatus
        How windowed computes keep their partials, where that has been set or has changed.
    settled : bool
        False in the answer to `Wait`, `Stop` or `Forget` if the job has ended, and the folder of its checkpoints may
        still change.
    unanswered : str
        What the scheduler waits for no longer then, since it has not answered: "its workers" or "its storage"; empty
        otherwise.
    """

    name: str
    generation: int
    status: Status
    error: bytes | None
    began: float
    ended: float | None
    oversubscribed: bool
    latency_target: float | None
    planner: str
    paradigm: str
    dry_run: bool
    pinned: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]
    components: tuple[ComponentDescription, ...]
    executors: tuple[ExecutorReport, ...]
    sources: tuple[InstanceRows, ...]
    sinks: tuple[InstanceRows, ...]
    event_times: tuple[InstanceTime, ...]
    dead_letters: dict[str, int]
    refused: int
    handoffs: tuple[HandoffProgress, ...] = ()
    control: ControlView = ControlView()
    silent: tuple[str, ...] = ()
    checkpoints: CheckpointStatus | None = None
    edges: tuple[EdgeRate, ...] = ()
    stalled: tuple[StalledCall, ...] = ()
    run: str = ""
    sharing: tuple[SharingStatus, ...] = ()
    settled: bool = True
    unanswered: str = ""

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self.status not in ENDED

    @property
    def awaited(self) -> bool:
        """Whether a wait for the end of the job goes on."""
        return self.live or not (self.settled or self.unanswered)

    @property
    def rows_read(self) -> int:
        """Rows that its sources have read."""
        return sum(part.rows for part in self.sources)

    @property
    def source_rate(self) -> float:
        """Rows per second that its sources read at the moment; 0 once it has ended."""
        return sum(part.rate for part in self.sources) if self.ended is None else 0.0


@dataclass(frozen=True)
class ShardMove:
    """A finished shard move.

    Parameters
    ----------
    operator : str
        The operator.
    executor, shard : int
        Which shard of which of its executors.
    source, target : int
        The tasks.
    across_nodes : bool
        Whether the shard changed its node.
    ended : float
        Seconds since the epoch.
    pause : float
        Seconds for which the shard's tuples waited.
    strategy, reason : str
        How the shard moved, one of `migration.strategy.STRATEGIES`, and why if that was chosen: with what each strategy
        was expected to cost.
    """

    operator: str
    executor: int
    shard: int
    source: int
    target: int
    across_nodes: bool
    ended: float
    pause: float
    strategy: str = "labelled"
    reason: str = ""


@dataclass(frozen=True)
class Recovery:
    """What became of the remote tasks of one executor on one lost node.

    Parameters
    ----------
    operator : str
        The operator.
    executor, node : int
        Which of its executors, and the node.
    tasks, shards : int
        How many were lost.
    rows : int
        Rows that had to be processed again.
    lost : float
        When the home noticed the loss, seconds since the epoch.
    first, ended : float or None
        When the first and the last of these rows were processed again.
    """

    operator: str
    executor: int
    node: int
    tasks: int
    shards: int
    rows: int
    lost: float
    first: float | None
    ended: float | None


@dataclass(frozen=True)
class ExecutorAssignment:
    """Shards and tasks of an executor.

    Parameters
    ----------
    operator : str
        The operator.
    executor, home : int
        Which of its executors, and the node that is its home.
    owner : tuple of int
        Task of each shard.
    node_of_task : dict of int to int
        Node of each task.
    """

    operator: str
    executor: int
    home: int
    owner: tuple[int, ...]
    node_of_task: dict[int, int]

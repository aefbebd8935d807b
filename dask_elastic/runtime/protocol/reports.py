"""What a worker reports to the scheduler about its part of a job, and the calls that carry it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.protocol.calls import Call
from dask_elastic.runtime.protocol.job_spec import JobOptions
from dask_elastic.vocab.column_types import ColumnTypes
from dask_elastic.vocab.compute_measure import ComputeMeasure
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_costs import WindowCosts

if TYPE_CHECKING:
    from dask_elastic.windows.unit_costs import PartMeasure


@dataclass(frozen=True)
class ExecutorReport:
    """The measures of one executor that users see.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    node : int
        The home.
    cores : int
        Cores held, on all nodes.
    arrival_rate, throughput : float
        Tuples per second that arrive, λ, and that are processed.
    service_rate : float or None
        Tuples per busy second of one core, μ; None before the first was processed.
    customer_rows : float
        Mean number of tuples of a sub-batch as it reaches a task.
    bytes_in, bytes_out : float
        Bytes per second of the arrivals and of the outputs.
    queue : int
        Tuples that wait.
    sojourn : float or None
        Mean seconds from a tuple's arrival to the end of its processing.
    latency_p50, latency_p99 : float or None
        Seconds from the scheduled emission at the source to the end of processing.
    state_bytes : int
        Size of the primary copy.
    rows : int
        Tuples processed so far.
    moves, moves_across : int
        Shards moved so far, and those of them that changed their node.
    pending_bytes : int
        Bytes sent to remote tasks that are not part of the primary copy yet.
    refused : int
        Stale and duplicate messages.
    recovered : int
        Nodes whose remote tasks were lost and replaced.
    recovery_p50, recovery_p99 : float or None
        Seconds from such a loss to the first row that was processed again.
    event_time : int or None
        The watermark, microseconds since the epoch.
    state_on_disk : int
        The part of `state_bytes` that is in files.
    windows : RowCounts or None
        What became of the rows of an operator with windows.
    open_windows : int or None
        Its open instances, or slices of instances, counted per key.
    window_costs : WindowCosts or None
        What the partial results of its windows have cost so far; None if that is not measured.
    separate : bool
        Whether rows of its windows are added to instances, or will be once a change has come into effect.
    computes : tuple of ComputeMeasure
        Each of several computes that run in its tasks; empty if there is only one.
    busy : float
        Busy seconds per second of all cores.
    backpressured : float
        The share of time, from 0 to 1, in which outputs waited for credit.
    hop : float or None
        Seconds of a round trip to its remote tasks; None without any.
    enough_cores : int or None
        Cores of each node that are known to be as fast as any more; None if that is not known.
    """

    operator: str
    executor: int
    node: int
    cores: int
    arrival_rate: float
    throughput: float
    service_rate: float | None
    customer_rows: float
    bytes_in: float
    bytes_out: float
    queue: int
    sojourn: float | None
    latency_p50: float | None
    latency_p99: float | None
    state_bytes: int
    rows: int
    moves: int
    moves_across: int
    pending_bytes: int = 0
    refused: int = 0
    recovered: int = 0
    recovery_p50: float | None = None
    recovery_p99: float | None = None
    event_time: int | None = None
    busy: float = 0.0
    backpressured: float = 0.0
    state_on_disk: int = 0
    windows: RowCounts | None = None
    open_windows: int | None = None
    window_costs: WindowCosts | None = None
    separate: bool = False
    computes: tuple[ComputeMeasure, ...] = ()
    hop: float | None = None
    enough_cores: int | None = None

    @property
    def window_measure(self) -> PartMeasure:
        """What the cost model of windows takes of these measures."""
        from dask_elastic.windows.unit_costs import PartMeasure

        return PartMeasure(1 / self.service_rate if self.service_rate else None, self.window_costs)


@dataclass(frozen=True)
class ExecutorDetail:
    """The measures of one executor that only the control loop uses.

    Parameters
    ----------
    latency_now : bytes
        The histogram of the latencies of the last two or three seconds, see `LatencyHistogram.to_bytes`.
    latency_mean : float or None
        Their mean over the seconds of `ExecutorReport.sojourn`.
    latency_rows : float
        Tuples that the mean is of.
    shard_load, shard_bytes : bytes
        Busy seconds per second, or what arriving rows require of these where key groups move; and bytes of state: of
        each shard, float32, little-endian.
    jumps : int
        How often the shares of the shards have jumped so far.
    traffic : tuple of (str, int, float)
        Component and number of upstream instances, and the bytes per second from them, the heaviest ones first. Plain
        values, so that the scheduler's event loop does not convert them.
    flows : tuple of (str, bytes, bytes, bytes)
        Traffic from its key groups, see `GroupFlow`: the operator, the groups that send and those that receive, int32,
        and bytes per second, float32, little-endian. Empty where groups do not move.
    """

    latency_now: bytes
    latency_mean: float | None
    latency_rows: float
    shard_load: bytes
    shard_bytes: bytes
    jumps: int
    traffic: Any = ()
    flows: Any = ()


IDLE_SECONDS = 1.0
"""Seconds between two reports of an idle part: the scheduler must still notice soon that a worker hangs."""


def report_seconds(options: JobOptions, idle: bool) -> float:
    """Return the seconds between two reports of a part of a job."""
    return max(options.report_interval, IDLE_SECONDS) if idle else options.report_interval


class InstanceRows(NamedTuple):
    """Rows that an instance of a source has read, or that an instance of a sink has written.

    Parameters
    ----------
    operator : str
        A source or a sink.
    instance : int
        Which of its instances.
    rows : int
        The rows so far.
    rate : float
        Rows per second that the instance reads or writes at the moment.
    busy : float
        The share of time in which a source sends rows and does not wait for credit, or a sink writes, from 0 to 1.
    backpressured : float
        The share of time in which the rows of a source wait for credit.
    lag : float
        Seconds by which the rows of a source leave later than they are due, or than they have arrived.
    """

    operator: str
    instance: int
    rows: int
    rate: float = 0.0
    busy: float = 0.0
    backpressured: float = 0.0
    lag: float = 0.0


class EdgeRate(NamedTuple):
    """Rows per second that an operator passes on.

    Parameters
    ----------
    producer, consumer : str
        The operators.
    rate : float
        Rows per second.
    """

    producer: str
    consumer: str
    rate: float


class InstanceTime(NamedTuple):
    """Event time at an instance.

    Parameters
    ----------
    operator : str
        A source, a stateful operator or a sink.
    instance : int
        Which of its instances.
    event_time : int or None
        The watermark, microseconds since the epoch; None while it is not known.
    late : int
        Rows of a source that were older than its watermark.
    """

    operator: str
    instance: int
    event_time: int | None
    late: int


class InputTypes(NamedTuple):
    """The types of the columns that an executor has got first, of an operator that reads a union.

    Parameters
    ----------
    operator : str
        The operator.
    first : ColumnTypes
        The types, and the upstream operator that sent them.
    """

    operator: str
    first: ColumnTypes


class StalledCall(NamedTuple):
    """A call of user code that does not return.

    Parameters
    ----------
    operator : str
        The operator whose code is called.
    activity : str
        What the code does: "read", "process" or "write".
    node : int
        The node.
    since : float
        When the call began, seconds since the epoch.
    thread : str
        The name of the thread.
    frame : str
        Where the code is: file, line and function of its innermost frame.
    """

    operator: str
    activity: str
    node: int
    since: float
    thread: str
    frame: str


class StagedBytes(NamedTuple):
    """Bytes that an instance of a source for Spark has staged in memory and on disk."""

    source: str
    memory: int
    spilled: int


@dataclass(frozen=True)
class PartReport:
    """Everything that the scheduler has to know about a job's part; each report replaces the one before.

    Parameters
    ----------
    complete : bool
        Whether every instance there has ended by itself.
    error : bytes or None
        The error of the part, see `dump_error`.
    executors, details : tuple
        The measures of each executor at home there, in one order.
    sources, sinks : tuple of InstanceRows
        Rows that were read and written.
    staged : tuple of StagedBytes
        Rows that Spark has staged.
    event_times : tuple of InstanceTime
        Watermarks.
    unions : tuple of InputTypes
        The types of what executors there that read a union get.
    dead_letters : dict of str to int
        Rows for which user code raised, by operator.
    refused : int
        Stale and duplicate messages.
    lost : tuple of str
        Addresses of nodes to which the connection is lost.
    absolved : int
        The newest number of `Suspects` whose batches have all been processed.
    edges : tuple of EdgeRate
        Rows that operators on threads there pass on.
    stalled : tuple of StalledCall
        Calls of user code that have lasted for longer than `JobOptions.stall_after`.
    """

    complete: bool
    error: bytes | None = None
    executors: tuple[ExecutorReport, ...] = ()
    details: tuple[ExecutorDetail, ...] = ()
    sources: tuple[InstanceRows, ...] = ()
    staged: tuple[StagedBytes, ...] = ()
    sinks: tuple[InstanceRows, ...] = ()
    event_times: tuple[InstanceTime, ...] = ()
    unions: tuple[InputTypes, ...] = ()
    dead_letters: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    lost: tuple[str, ...] = ()
    absolved: int = 0
    edges: tuple[EdgeRate, ...] = ()
    stalled: tuple[StalledCall, ...] = ()


class SuspectBatch(NamedTuple):
    """A batch that a lost node was processing; see `PoisonBatch`."""

    operator: str
    batch: str


class Fate(Enum):
    """What becomes of a part of a job, as far as the scheduler knows."""

    RUNS = "runs"
    ENDS = "ends"
    DROPPED = "dropped"


class ReportAnswer(NamedTuple):
    """What the scheduler answers to a report.

    Parameters
    ----------
    lease : float
        The length of the part's lease from the call on, seconds; 0 if the part must not emit any more, and for jobs
        without checkpoints, which need none.
    fate : Fate
        Whether the part ends because its job has ended, or is dropped because the job goes on without it or is unknown.
    """

    lease: float = 0.0
    fate: Fate = Fate.RUNS


class Report(Call[ReportAnswer]):
    """Report on a job's part.

    Parameters
    ----------
    job : str
        The job.
    generation, node, incarnation : int
        Which part; the scheduler refuses the reports of stale ones.
    report : PartReport or None
        The report; None from an idle part whose last report still holds, and from one that has reported its end.
    late : bool
        Whether the part is still being measured, and only renews its lease: its last report does not hold any more.
    """

    job: str
    generation: int
    node: int
    report: PartReport | None
    incarnation: int = 0
    late: bool = False


class Suspects(Call[None]):
    """Name the batches that a lost worker may have died of, before this worker processes them.

    Parameters
    ----------
    job : str
        The job.
    generation, node, incarnation : int
        Which part of it is about to process them.
    number : int
        `PartReport.absolved` names it when the batches have been processed.
    batches : tuple of SuspectBatch
        The batches.
    """

    job: str
    generation: int
    node: int
    number: int
    batches: tuple[SuspectBatch, ...]
    incarnation: int = 0

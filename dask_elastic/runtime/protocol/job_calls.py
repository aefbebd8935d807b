"""Calls of clients to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dask_elastic.runtime.protocol.calls import Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.job_description import (
    ExecutorAssignment,
    JobDescription,
    Recovery,
    ShardMove,
    SharingStatus,
)
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobOptions
from dask_elastic.vocab.checkpoint import CheckpointDescription, JobRestart


class Submit(Call[JobDescription]):
    """Place a job on the workers and start it.

    Parameters
    ----------
    name, version : str
        The name of the job, and the client's version of dask_elastic.
    summaries : tuple of ComponentSummary
        The structure.
    options : JobOptions
        The options.
    cores : dict of str to int
        Cores of each executor of an operator, where the user has set them.
    components : bytes
        The pickled components, user code included; only workers unpickle them.
    resume : int or None
        The checkpoint from which the job continues; None for a new one.
    run : str
        The identifier of the run that is continued; see `JobSpec.run`.
    savepoint : str or None
        The folder of the savepoint with the checkpoint `resume`, which is copied; None if that is in the job's folder.
    """

    name: str
    version: str
    summaries: tuple[ComponentSummary, ...]
    options: JobOptions
    cores: dict[str, int]
    components: bytes
    resume: int | None = None
    run: str = ""
    savepoint: str | None = None


# a job's life


class ListJobs(Call[tuple[JobDescription, ...]]):
    """Describe all jobs, oldest first."""


class Describe(Call[JobDescription]):
    """Describe a job."""

    job: str


class Wait(Call[JobDescription]):
    """Describe a job once it has ended and changes its folder no more, or after `timeout` seconds."""

    job: str
    timeout: float


class Drain(Call[None]):
    """Have the sources of a job read no further."""

    job: str


class Stop(Call[JobDescription]):
    """End a job at once, and describe it; its state stays readable."""

    job: str


class Forget(Call[JobDescription]):
    """End a job at once, free its state, and describe it as it was."""

    job: str


# cores, shards and workers


class SetCores(Call[JobDescription]):
    """Set the cores of an operator's executors.

    Parameters
    ----------
    job, operator : str
        The stateful operator of a job.
    cores : int, dict of str to int, or "auto"
        Cores of each executor; or by the address of the node; or the control loop chooses them again. The scheduler
        checks the value.
    executor : int or None
        One executor, or all.
    """

    job: str
    operator: str
    cores: Any
    executor: int | None = None


class ShareWindows(Call[SharingStatus]):
    """Set whether the windows of a compute share slices.

    Parameters
    ----------
    job, operator : str
        The windowed compute of a job.
    mode : {"slices", "instances", "auto"}
        The plan; "auto" lets the cost model choose it each period.
    close_limit : float or None
        Seconds that merging an instance of slices may take, if the cost model chooses; None for no limit.
    """

    job: str
    operator: str
    mode: str
    close_limit: float | None = None


class MoveShard(Call[str]):
    """Begin to move a shard of an executor to another of its tasks; answered with the status of the job."""

    job: str
    operator: str
    executor: int
    shard: int
    task: int


class MoveExecutor(Call[None]):
    """Move the home of an executor to another worker, by address; answered when the executor has begun there."""

    job: str
    operator: str
    executor: int
    worker: str


class Retire(Call[None]):
    """Take all cores away from workers; answered when no task is left there.

    Parameters
    ----------
    workers : tuple of str
        Their addresses.
    timeout : float or None
        Seconds to wait at most.
    """

    workers: tuple[str, ...]
    timeout: float | None


# checkpoints


class TakeCheckpoint(Call[CheckpointDescription]):
    """Take a checkpoint of a job now; answered when it is complete."""

    job: str


class TakeSavepoint(Call[CheckpointDescription]):
    """Take a checkpoint of a job and copy it; answered when the copy is complete.

    Parameters
    ----------
    job : str
        The job.
    url : str
        The folder of the copy, which has no checkpoint.
    stop : bool
        Whether the job ends behind it: it processes no row that the savepoint lacks.
    """

    job: str
    url: str
    stop: bool = False


class Checkpoints(Call[tuple[CheckpointDescription, ...]]):
    """Return the newest checkpoints of a job, oldest first."""

    job: str


# questions


class Moves(Call[tuple[ShardMove, ...]]):
    """Return the newest finished shard moves of every executor."""

    job: str


class Recoveries(Call[tuple[Recovery, ...]]):
    """Return the newest losses of remote tasks of every executor."""

    job: str


class Restarts(Call[tuple[JobRestart, ...]]):
    """Return the newest restarts of a job from a checkpoint, oldest first."""

    job: str


class Assignment(Call[tuple[ExecutorAssignment, ...]]):
    """Return shards and tasks of every executor."""

    job: str


class State(Call[tuple[Payload, ...]]):
    """Return the state of a stateful operator as Arrow IPC streams, one for each executor that has some.

    Parameters
    ----------
    job, operator : str
        The stateful operator of a job.
    key : tuple or None
        The values of one key; all keys if left out.
    first : int or None
        At most so many rows of each executor, see `first_rows`; all if left out.
    """

    job: str
    operator: str
    key: tuple[Any, ...] | None = None
    first: int | None = None


@dataclass(frozen=True)
class StatePlacesAnswer:
    """Where the state of an operator is.

    Parameters
    ----------
    generation : int
        The generation of the job.
    homes : tuple of str
        The address of the home of each executor.
    empty : bytes or None
        The state before the first batch as an Arrow IPC stream.
    """

    generation: int
    homes: tuple[str, ...]
    empty: bytes | None


class StatePlaces(Call[StatePlacesAnswer]):
    """Return where the state of a stateful operator is.

    Parameters
    ----------
    job, operator : str
        The stateful operator of a job.
    """

    job: str
    operator: str


class Collect(Call[tuple[Payload, ...]]):
    """Return the rows that a sink keeps for the client as Arrow IPC streams, one for each node that has some."""

    job: str
    operator: str


class DeadLetters(Call[tuple[Payload, ...]]):
    """Return the dead letters of an operator as Arrow IPC streams, one for each node that has some."""

    job: str
    operator: str


class Decisions(Call[Payload]):
    """Return the newest decisions about a job as a JSON list, oldest first."""

    job: str
    last: int | None = None


class Snapshots(Call[Payload]):
    """Return the newest snapshots in which a job is as a recording."""

    job: str
    last: int | None = None


@dataclass(frozen=True)
class EvidenceAnswer:
    """What the control loop bases its decisions about a job on.

    Parameters
    ----------
    settings : dict of str to object
        The settings of the loop, whole and other numbers.
    placement : dict of str to object
        The settings of the placement loop.
    snapshots : Payload
        A recording of the newest snapshots in which the job is. The last one is of the present; if the job has ended,
        it is the last one on which the loop decided.
    decisions : Payload
        The newest decisions about the job as a JSON list, oldest first.
    """

    settings: dict[str, Any]
    placement: dict[str, Any]
    snapshots: Payload
    decisions: Payload


class Evidence(Call[EvidenceAnswer]):
    """Return what the control loop bases its decisions about a job on."""

    job: str


# rows of a pushed source


class PushedSource(NamedTuple):
    """Where the rows of a pushed source go.

    Parameters
    ----------
    name : str
        The source.
    generation : int
        The generation of the job.
    addresses : tuple of str
        The worker of each of its instances; empty while the job restarts.
    schema : bytes or None
        The schema that it declares for sent rows, as an Arrow IPC message; None if it declares none.
    most_bytes : int or None
        Bytes of the largest batch that a client may send; None for no limit.
    run : str
        The run of the job if the source acknowledges rows when they are durable: what is not acknowledged is sent again
        to the next generation of the run. Otherwise empty.
    """

    name: str
    generation: int
    addresses: tuple[str, ...]
    schema: bytes | None = None
    most_bytes: int | None = None
    run: str = ""


class FindSource(Call[PushedSource]):
    """Find a pushed source of a running job, so that a client can send rows to its workers.

    Parameters
    ----------
    job : str
        The job.
    source : str or None
        The source; None if the job has only one that is pushed.
    """

    job: str
    source: str | None


class Send(Call[bool]):
    """Send rows to a pushed source through the scheduler; the answer is False when the source has no room.

    Parameters
    ----------
    job, source : str
        The source of a job.
    instance : int
        Which of its instances.
    rows : Payload
        An Arrow IPC stream.
    due : float or None
        When the rows were due, in seconds since the epoch.
    sender : str
        Who sends them, if the source makes rows durable; the answer then comes when they are.
    sequence : int
        The sender's number for them.
    """

    job: str
    source: str
    instance: int
    rows: Payload
    due: float | None
    sender: str = ""
    sequence: int = 0


class AgreeOnInput(Call[bytes]):
    """Return what the first instance of a source has found, for all instances of a generation to read.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation of the job that the worker hosts.
    source : str
        The source.
    found : bytes
        What this instance has found.
    """

    job: str
    generation: int
    source: str
    found: bytes


class CloseSource(Call[None]):
    """End a pushed source after the rows that were sent; of a source for Spark, all instances.

    Parameters
    ----------
    job : str
        The job.
    source : str or None
        The source; None if the job has only one that is pushed.
    instance : int
        Which of its instances.
    """

    job: str
    source: str | None
    instance: int

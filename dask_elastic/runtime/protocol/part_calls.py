"""Calls of the scheduler to workers, most of them about the job's part on a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack

from dask_elastic.runtime.protocol.calls import A, Call
from dask_elastic.runtime.protocol.codec import Payload, decode, encode
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment, Recovery, ShardMove
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.reports import PartReport
from dask_elastic.vocab.identity import ExecutorId


class Prepare(Call[None]):
    """Build a node's part of a job.

    Parameters
    ----------
    job : Payload
        The job, the same for all nodes; see `for_nodes`.
    node : int
        The node that this part is for.
    components : Payload
        The pickled components.
    """

    job: Payload
    node: int
    components: Payload

    @classmethod
    def for_nodes(cls, spec: JobSpec, components: bytes) -> Callable[[int], Prepare]:
        """Return what makes the call for each node.

        The job is encoded once: it lists all nodes, and to encode it for each of a thousand would take the scheduler's
        event loop half a second.

        Examples
        --------
        >>> from dask_elastic.runtime.config.job_options import job_options
        >>> spec = JobSpec("words", 1, ("a", "b"), 0, (), {}, {"counts": ({1: 2},)}, job_options({}))
        >>> call = Prepare.for_nodes(spec, b"")(1)
        >>> call.spec.node, call.spec.cores
        (1, {'counts': ({1: 2},)})
        """
        job = memoryview(msgpack.packb(encode(JobSpec, spec), use_bin_type=True))
        return lambda node: cls(job, node, memoryview(components))

    @property
    def spec(self) -> JobSpec:
        """The part."""
        plain = msgpack.unpackb(self.job, raw=False, use_list=False, strict_map_key=False)
        return replace(decode(JobSpec, plain), node=self.node)


class CheckCode(Call[None]):
    """Check that the code of a job can be loaded on a node.

    Parameters
    ----------
    job : str
        The job.
    components : Payload
        The pickled components.
    """

    job: str
    components: Payload


class PartCall(Call[A]):
    """A call about a job's part; a worker refuses calls to another generation than the one that it hosts.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        Its generation.
    """

    job: str
    generation: int


# a part's life


class Members(PartCall[None]):
    """Change the nodes of the job.

    Parameters
    ----------
    change : int
        Counts the changes of the job's nodes; an earlier change than the newest is ignored.
    nodes : tuple of str
        See `JobSpec.nodes`.
    guests : tuple of int
        See `JobSpec.guests`.
    """

    change: int
    nodes: tuple[str, ...]
    guests: tuple[int, ...]


class StartExecutors(PartCall[None]):
    """Start executors and sinks; every node does this before any source starts."""


class StartSources(PartCall[None]):
    """Start the sources."""


class Drain(PartCall[None]):
    """Have the sources read no further."""


class End(PartCall[tuple[str, ...]]):
    """Stop at once; state and measures stay readable. A later generation goes on.

    The answer names the files of checkpoints that may still appear, since storage has not answered.
    """


class Forget(PartCall[tuple[str, ...]]):
    """Stop at once and free everything; the answer names the threads that user code still occupies.

    Parameters
    ----------
    incarnation : int or None
        The part that the node has had since this joining; a part of a later joining goes on. None is any part.
    """

    incarnation: int | None = None


# checkpoints


class BeginCheckpoint(PartCall[None]):
    """Begin a checkpoint: sources send its barrier, and receivers await it.

    Parameters
    ----------
    number : int
        The checkpoint.
    halts : bool
        Whether sources send nothing behind the barrier until the checkpoint is given up, or `ContinueSources`.
    """

    number: int
    halts: bool = False


class AbandonCheckpoint(PartCall[None]):
    """Give up a checkpoint; receivers no longer wait for its barriers."""

    number: int


class HoldSources(PartCall[None]):
    """Sources that halt behind the barrier of this checkpoint acknowledge nothing more that they accept."""

    number: int


class ContinueSources(PartCall[None]):
    """Sources continue that halt behind the barrier of this checkpoint, or of an earlier one, or are held for it."""

    number: int


class CommitCheckpoint(PartCall[None]):
    """A checkpoint is complete: sinks commit what they have prepared for it."""

    number: int


# cores and shards


class SetCores(PartCall[None]):
    """Set the cores of an executor at home there.

    Parameters
    ----------
    change : int
        Counts the changes of the job's cores; an earlier change than the newest of the executor is refused.
    operator : str
        The operator.
    executor : int
        Which of its executors.
    cores : dict of int to int
        Cores on each node.
    """

    change: int
    operator: str
    executor: int
    cores: dict[int, int]


class ChangeSharing(PartCall[int | None]):
    """Have an executor at home there add rows of windows to instances, or to slices.

    The answer is the event time that it had reached before; if that is not earlier than `since`, it changes at once.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    separate : bool
        Whether to add rows to instances.
    since : int or None
        The event time from which on, in microseconds since the Unix epoch; None for at once.
    """

    operator: str
    executor: int
    separate: bool
    since: int | None


class MoveShard(PartCall[None]):
    """Begin to move a shard of an executor at home there."""

    operator: str
    executor: int
    shard: int
    task: int


class AwaitTaskEnds(PartCall[tuple[ExecutorId, ...]]):
    """Wait until no executor at home there has tasks on some nodes; the answer names those that still have.

    Parameters
    ----------
    nodes : tuple of int
        The nodes.
    wait : float
        Seconds after which the worker answers in any case.
    """

    nodes: tuple[int, ...]
    wait: float


# questions


class Assignment(PartCall[tuple[ExecutorAssignment, ...]]):
    """Return shards and tasks of every executor at home there."""


class Moves(PartCall[tuple[ShardMove, ...]]):
    """Return the newest finished shard moves of every executor at home there."""


class Recoveries(PartCall[tuple[Recovery, ...]]):
    """Return the newest losses of remote tasks of every executor at home there."""


class Report(PartCall[PartReport]):
    """Return what the next report would contain."""


class State(PartCall[tuple[Payload, ...]]):
    """Return the state of an executor at home there, its first rows, or the row of one key, as an Arrow IPC stream."""

    operator: str
    executor: int
    key: tuple[Any, ...] | None = None
    first: int | None = None


class StateTypes(PartCall[tuple[Payload, ...]]):
    """Return the state of an executor at home there without its rows; nothing before its first batch."""

    operator: str
    executor: int


class Collect(PartCall[tuple[Payload, ...]]):
    """Return the rows that a sink there keeps for the client, as an Arrow IPC stream."""

    operator: str


class DeadLetters(PartCall[tuple[Payload, ...]]):
    """Return the dead letters of an operator there, as an Arrow IPC stream."""

    operator: str


# rows of a pushed source


class Send(PartCall[bool]):
    """Put rows into the mailbox of a source there; the answer is False when it has no room."""

    source: str
    instance: int
    rows: Payload
    due: float | None = None
    sender: str = ""
    sequence: int = 0


class CloseSource(PartCall[None]):
    """End a pushed source after the rows that were sent."""

    source: str
    instance: int

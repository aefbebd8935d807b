"""Calls of Spark's epoch handoff: writers stage rows at workers and commit epochs at the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dask_elastic.runtime.protocol.calls import Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.vocab.epoch import AttemptId, EpochOrigin, StagedPart

# a writer to the scheduler


@dataclass(frozen=True)
class StagingPlaces:
    """Where a writer stages the rows for a source.

    Parameters
    ----------
    generation : int
        The job's generation.
    source : str
        The source.
    places : tuple of str
        Address of the worker of each instance.
    run : str
        The job's run, which its restarts keep.
    spooled : bool
        Whether staged rows survive a restart of the job, which a writer then waits for.
    known : bool
        Whether the epoch of the call is committed already: its rows need not be staged, only counted and compared.
    """

    generation: int
    source: str
    places: tuple[str, ...]
    run: str = ""
    spooled: bool = False
    known: bool = False


class HandoffPlaces(Call[StagingPlaces]):
    """Return where to stage rows for a source; without a name, for the only source that takes epochs.

    The answer waits while the job restarts. With a query and an epoch, it tells whether these are committed.
    """

    job: str
    source: str | None
    query: str = ""
    epoch: int = 0


class CommitEpoch(Call[bool]):
    """Commit an epoch: when the answer is True, its rows are the job's; False when too many epochs wait already.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation for which the parts were staged.
    run : str
        The run for which they were staged.
    source, query : str
        The source, and the streaming query that writes.
    epoch : int
        The micro-batch of the query.
    origin : EpochOrigin
        Who numbers the epochs.
    parts : tuple of StagedPart
        The attempts that Spark has chosen, one for each partition with rows.
    wait : float
        Seconds to wait for room.
    """

    job: str
    generation: int
    run: str
    source: str
    query: str
    epoch: int
    origin: EpochOrigin
    parts: tuple[StagedPart, ...]
    wait: float


class AbortEpoch(Call[None]):
    """Drop the rows that were staged for an epoch, unless it is committed."""

    job: str
    generation: int
    run: str
    source: str
    query: str
    epoch: int


# an instance of a source to the scheduler


class CommittedEpoch(NamedTuple):
    """An epoch that an instance of a source is to read.

    Parameters
    ----------
    number : int
        The place in the ledger, counted from 1.
    parts : tuple of StagedPart
        The attempts that are staged at the instance.
    """

    number: int
    parts: tuple[StagedPart, ...]


class EpochsToRead(NamedTuple):
    """The epochs that an instance of a source has not read.

    Parameters
    ----------
    epochs : tuple of CommittedEpoch
        The epochs, in the order of the commits.
    closed : bool
        Whether no other ones follow.
    """

    epochs: tuple[CommittedEpoch, ...]
    closed: bool = False


class NextEpochs(Call[EpochsToRead]):
    """Return the committed epochs of an instance behind a number, after waiting up to `wait` seconds for one."""

    job: str
    generation: int
    source: str
    instance: int
    after: int
    wait: float


class TakeEpochs(Call[None]):
    """Note that an instance has read every epoch up to a number, or that it begins to read behind the number."""

    job: str
    generation: int
    source: str
    instance: int
    through: int
    begins: bool = False


# the scheduler to a worker


class Seal(Call[bytes | None]):
    """Keep the attempts chosen for an epoch; fails when one of them is not staged there.

    The answer is a copy of a small epoch's rows for the Dask queue of the instance, as an Arrow IPC stream.
    """

    job: str
    generation: int
    source: str
    instance: int
    query: str
    epoch: int
    chosen: tuple[AttemptId, ...]


class Unstage(Call[None]):
    """Drop all attempts of an epoch but those to `keep`."""

    job: str
    generation: int
    source: str
    instance: int
    query: str
    epoch: int
    keep: tuple[AttemptId, ...]


# a client to a worker


class StagedRows(Call[Payload]):
    """Return a copy of the rows of a committed attempt, as an Arrow IPC stream."""

    job: str
    generation: int
    source: str
    instance: int
    part: StagedPart


# a writer to a worker, on a stream of its own


@dataclass(frozen=True)
class BeginAttempt:
    """The first message of an attempt on the stream ``elastic_stage``; chunks and the end follow.

    Parameters
    ----------
    attempt : AttemptId
        The attempt.
    job : str
        The job.
    generation : int
        Its generation.
    source : str
        The source.
    instance : int
        The instance at which the rows are staged.
    schema : bytes
        The Arrow schema of the rows, as an IPC message.
    """

    attempt: AttemptId
    job: str
    generation: int
    source: str
    instance: int
    schema: bytes

"""The handoff from another engine: what it stages for a job, and the epochs that it commits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class EpochKind(Enum):
    """Who numbers the epochs of a query.

    Attributes
    ----------
    BATCH
        The query is one batch with a unique name, which is never repeated.
    NAMED
        The program that sends them.
    FOREACH_BATCH
        Spark, from 0; the function of `foreachBatch` may skip some.
    STREAM
        Spark, from 0; each one is sent.
    """

    BATCH = "batch"
    NAMED = "named"
    FOREACH_BATCH = "foreachBatch"
    STREAM = "stream"

    @property
    def streaming(self) -> bool:
        """Whether Spark counts the epochs in the checkpoint of a streaming query."""
        return self in (EpochKind.FOREACH_BATCH, EpochKind.STREAM)


class EpochOrigin(NamedTuple):
    """The origin of an epoch.

    Parameters
    ----------
    kind : EpochKind
        Who numbers the epochs.
    checkpoint : str
        The checkpoint of the streaming query, with the name that the program gave the query, if any. Empty if
        unknown.
    """

    kind: EpochKind
    checkpoint: str = ""


NAMED = EpochOrigin(EpochKind.NAMED)


class AttemptId(NamedTuple):
    """One attempt to write one partition of one epoch.

    Parameters
    ----------
    query : str
        The id of the streaming query that writes; a restart of the query keeps it.
    epoch : int
        The number of the query's micro-batch.
    partition : int
        The number of the partition within the micro-batch.
    attempt : str
        The name of the attempt, unique among all attempts.
    """

    query: str
    epoch: int
    partition: int
    attempt: str

    def __str__(self) -> str:
        return f"query {self.query}, epoch {self.epoch}, partition {self.partition}, attempt {self.attempt}"


class SpoolFile(NamedTuple):
    """The file of a staged attempt in the folder of the job's checkpoints.

    Parameters
    ----------
    path : str
        The path within the folder.
    nbytes : int
        Its size.
    checksum : str
        The checksum of its contents.
    """

    path: str
    nbytes: int
    checksum: str


class StagedPart(NamedTuple):
    """A finished attempt, which a writer reports when all of its rows are staged.

    Parameters
    ----------
    attempt : AttemptId
        The attempt.
    instance : int
        The instance of the source whose worker holds the rows.
    rows : int
        The number of rows.
    digest : int
        The sum of the hashes of the rows; see `dask_elastic.routing.row_digest`.
    file : SpoolFile or None
        The rows on durable storage; None in a job that does not spool them.
    """

    attempt: AttemptId
    instance: int
    rows: int
    digest: int
    file: SpoolFile | None = None


@dataclass(frozen=True)
class EpochRecord:
    """One committed epoch.

    Parameters
    ----------
    number : int
        The place in the ledger, counted from 1.
    query : str
        The streaming query that wrote it.
    epoch : int
        The micro-batch of the query.
    rows : int
        Number of rows.
    digest : int
        The digest of all its rows; independent of their order.
    parts : tuple of StagedPart
        The attempts that Spark has chosen, one for each partition.
    origin : EpochOrigin
        Who numbers the epochs.
    """

    number: int
    query: str
    epoch: int
    rows: int
    digest: int
    parts: tuple[StagedPart, ...]
    origin: EpochOrigin = NAMED

    def of_instance(self, instance: int) -> tuple[StagedPart, ...]:
        """Return the parts that one instance of the source reads, in the order of their partitions."""
        return tuple(part for part in self.parts if part.instance == instance)


@dataclass(frozen=True)
class HandoffProgress:
    """The progress of a handoff to one source.

    Parameters
    ----------
    source : str
        The name of the source.
    epoch : int or None
        The micro-batch committed last; None before the first.
    epochs, rows : int
        The number of micro-batches committed, and of their rows.
    rows_per_second : float
        The recent rate of committed rows.
    waiting, limit : int
        The number of committed micro-batches that wait at the slowest instance, and its limit.
    staged, spilled : int
        Bytes that the instances of the source hold in memory and on disk, whether committed or not.
    """

    source: str
    epoch: int | None = None
    epochs: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    waiting: int = 0
    limit: int = 0
    staged: int = 0
    spilled: int = 0

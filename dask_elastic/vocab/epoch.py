"""Words of a hand-off: what another engine stages for a job, and the epochs that it commits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class AttemptId(NamedTuple):
    """One attempt to write one partition of one epoch.

    Parameters
    ----------
    query : str
        Who writes: the id of a streaming query, which outlives its restarts.
    epoch : int
        Which micro-batch of the query.
    partition : int
        Which partition of the micro-batch.
    attempt : str
        Which attempt; no two attempts have one name.
    """

    query: str
    epoch: int
    partition: int
    attempt: str

    def __str__(self) -> str:
        return f"query {self.query}, epoch {self.epoch}, partition {self.partition}, attempt {self.attempt}"


class StagedPart(NamedTuple):
    """A finished attempt: what a writer says when all of its rows are staged.

    Parameters
    ----------
    attempt : AttemptId
        Which one.
    instance : int
        The instance of the source at whose worker the rows are.
    rows : int
        How many.
    digest : int
        The sum of the hashes of the rows, see `dask_elastic.routing.row_digest`.
    """

    attempt: AttemptId
    instance: int
    rows: int
    digest: int

    def to_message(self) -> list[Any]:
        """Return plain values; digests, which exceed what MessagePack calls an integer's range, as text."""
        return [list(self.attempt), self.instance, self.rows, str(self.digest)]

    @classmethod
    def from_message(cls, message: list[Any]) -> StagedPart:
        """Return the inverse of `to_message`.

        Examples
        --------
        >>> part = StagedPart(AttemptId("q", 3, 0, "7-ab"), 1, 100, 2**64 - 1)
        >>> StagedPart.from_message(part.to_message()) == part
        True
        """
        attempt, instance, rows, digest = message
        return cls(AttemptId(*attempt), int(instance), int(rows), int(digest))


@dataclass(frozen=True)
class HandoffProgress:
    """How far a hand-off to one source is.

    Parameters
    ----------
    source : str
        The source.
    epoch : int or None
        The micro-batch that was committed last, None before the first.
    epochs, rows : int
        How many micro-batches were committed, and how many rows these had.
    rows_per_second : float
        What was committed of late.
    waiting, limit : int
        How many committed micro-batches wait at the instance that is furthest behind, and how many may.
    staged, spilled : int
        Bytes that the instances of the source hold in memory and on disk, committed or not.
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

    def to_message(self) -> dict[str, Any]:
        """Return plain values, by their names.

        Examples
        --------
        >>> HandoffProgress(**HandoffProgress("rows", epoch=3).to_message()).epoch
        3
        """
        return asdict(self)

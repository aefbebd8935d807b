"""Words of a hand-off: what another engine stages for a job, and the epochs that it commits."""

from __future__ import annotations

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

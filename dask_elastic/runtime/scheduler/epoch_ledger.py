"""The ledger of a handoff: the committed epochs, their attempts, and the acknowledgements of readers. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from dask_elastic.routing.row_digest import MODULUS
from dask_elastic.runtime.scheduler.query_positions import QueryPositions
from dask_elastic.vocab.epoch import NAMED, AttemptId, EpochKind, EpochOrigin, StagedPart
from dask_elastic.vocab.errors import EpochConflict, HandoffError

KEPT = 1_000
"""Acknowledged epochs of a query that the ledger remembers."""


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
    """

    number: int
    query: str
    epoch: int
    rows: int
    digest: int
    parts: tuple[StagedPart, ...]

    def of_instance(self, instance: int) -> tuple[StagedPart, ...]:
        """Return the parts that one instance of the source reads, in the order of their partitions."""
        return tuple(part for part in self.parts if part.instance == instance)


class EpochLedger:
    """The committed epochs of one source.

    Adding the record of an epoch is its commit: only rows of recorded epochs belong to the job.

    Parameters
    ----------
    instances : int
        Instances of the source.
    kept : int
        How many acknowledged epochs of a query to remember. The ledger refuses older ones, because it does not know
        whether they were committed; Spark repeats only the last. Likewise for all batches without a name together,
        which only a commit repeats that is sent again over another connection.
    positions : QueryPositions, optional
        Refuses epochs that do not continue their query.

    Examples
    --------
    >>> ledger = EpochLedger(instances=1)
    >>> part = StagedPart(AttemptId("q", 0, 0, "a"), instance=0, rows=2, digest=77)
    >>> ledger.known("q", 0, [part])
    False
    >>> ledger.commit("q", 0, [part]).number
    1
    >>> ledger.known("q", 0, [part])
    True
    >>> [record.epoch for record in ledger.pending(0)]
    [0]
    >>> ledger.acknowledge(0, 1)
    >>> ledger.pending(0)
    []
    """

    def __init__(self, instances: int, kept: int = KEPT, positions: QueryPositions | None = None):
        self.instances = instances
        self.positions = positions or QueryPositions()
        self.kept = kept
        self.rows = 0
        self.newest: EpochRecord | None = None
        self.closed = False
        self._count = 0
        self._queries: dict[str, OrderedDict[int, EpochRecord]] = {}
        self._forgotten: dict[str, int] = {}
        self._batches: OrderedDict[str, EpochRecord] = OrderedDict()
        self._pending: list[deque[EpochRecord]] = [deque() for _ in range(instances)]

    @property
    def epochs(self) -> int:
        """Number of committed epochs."""
        return self._count

    def known(self, query: str, epoch: int, parts: Sequence[StagedPart], origin: EpochOrigin = NAMED) -> bool:
        """Return whether an epoch is committed already with the same rows.

        Parameters
        ----------
        query : str
            The streaming query.
        epoch : int
            The micro-batch.
        parts : sequence of StagedPart
            The attempts chosen for it.
        origin : EpochOrigin
            Who numbers the epochs.

        Raises
        ------
        EpochConflict
            If it was committed with other rows.
        SourceReset
            If it is not committed, and does not continue its query.
        HandoffError
            If the parts are not those of one epoch, or the epoch is too old to be remembered.
        """
        rows, digest = self._checked(query, epoch, parts)
        record = self._record(query, epoch)
        if record is None:
            if epoch <= self._forgotten.get(query, -1):
                raise HandoffError(
                    f"query {query}, epoch {epoch}: so old that the ledger has forgotten whether it was committed. "
                    "Submit the job again, and start the query with a new checkpoint."
                )
            self.positions.check(query, epoch, origin)
            return False
        if (record.rows, record.digest) != (rows, digest):
            raise EpochConflict(
                f"query {query}, epoch {epoch} was committed with {record.rows} rows of digest {record.digest:016x}, "
                f"and comes again with {rows} rows of digest {digest:016x}: the query's source does not return the "
                "same rows again. Submit the job again, and start the query with a new checkpoint."
            )
        return True

    def commit(self, query: str, epoch: int, parts: Sequence[StagedPart], origin: EpochOrigin = NAMED) -> EpochRecord:
        """Record an epoch: from now on its rows belong to the job.

        Parameters
        ----------
        query : str
            The streaming query.
        epoch : int
            The micro-batch.
        parts : sequence of StagedPart
            The attempts chosen for it; none for an epoch without rows.
        origin : EpochOrigin
            Who numbers the epochs.

        Returns
        -------
        EpochRecord
            The record; the earlier one when the epoch is known.

        Raises
        ------
        HandoffError
            If the source has ended, or for the reasons of `known`.
        """
        if self.known(query, epoch, parts, origin):
            earlier = self._record(query, epoch)
            assert earlier is not None
            return earlier
        if self.closed:
            raise HandoffError(
                f"query {query}, epoch {epoch}: the source has ended, it takes no more rows. The end of a query "
                'ends the source that it writes to; .option("end", "false") keeps it open for others.'
            )
        rows, digest = self._checked(query, epoch, parts)
        self._count += 1
        record = EpochRecord(self._count, query, epoch, rows, digest, tuple(sorted(parts)))
        self.rows += rows
        self.newest = record
        self.positions.advance(query, epoch, origin)
        if origin.kind is EpochKind.BATCH:
            self._batches[query] = record
        else:
            self._queries.setdefault(query, OrderedDict())[epoch] = record
        for instance, pending in enumerate(self._pending):
            if record.of_instance(instance):
                pending.append(record)
        self._forget(query)
        return record

    def chosen(self, query: str, epoch: int) -> frozenset[AttemptId]:
        """Return the attempts of a committed epoch; none if it is not committed."""
        record = self._record(query, epoch)
        return frozenset(part.attempt for part in record.parts) if record else frozenset()

    def pending(self, instance: int, after: int = 0) -> list[EpochRecord]:
        """Return the records that an instance has not acknowledged, in the order of the commits.

        Parameters
        ----------
        instance : int
            The instance of the source.
        after : int
            Only records behind this number.
        """
        return [record for record in self._pending[instance] if record.number > after]

    def acknowledge(self, instance: int, number: int) -> None:
        """Note that an instance has read every record up to a number."""
        pending = self._pending[instance]
        while pending and pending[0].number <= number:
            query = pending.popleft().query
            self._forget(query)

    def backlog(self, parts: Sequence[StagedPart] = ()) -> int:
        """Return the most epochs that wait at any instance, of those to which these parts go; of all without parts."""
        instances = {part.instance for part in parts} if parts else range(self.instances)
        return max((len(self._pending[instance]) for instance in instances), default=0)

    def close(self) -> None:
        """Accept no more epochs; the committed ones are still read."""
        self.closed = True

    def _record(self, query: str, epoch: int) -> EpochRecord | None:
        records = self._queries.get(query)
        return self._batches.get(query) if records is None else records.get(epoch)

    def _forget(self, query: str) -> None:
        waiting = {record.number for pending in self._pending for record in pending}
        while len(self._batches) > self.kept and next(iter(self._batches.values())).number not in waiting:
            self._batches.popitem(last=False)
        records = self._queries.get(query, OrderedDict())
        while len(records) > self.kept and next(iter(records.values())).number not in waiting:
            epoch, _ = records.popitem(last=False)
            self._forgotten[query] = max(epoch, self._forgotten.get(query, -1))

    def _checked(self, query: str, epoch: int, parts: Sequence[StagedPart]) -> tuple[int, int]:
        """Return the sums of rows and digests of the parts."""
        partitions = [part.attempt.partition for part in parts]
        if len(set(partitions)) < len(partitions):
            raise HandoffError(f"query {query}, epoch {epoch}: two attempts of one partition among {partitions}.")
        for part in parts:
            if part.attempt[:2] != (query, epoch) or not 0 <= part.instance < self.instances:
                raise HandoffError(f"{part.attempt}: is no part of query {query}, epoch {epoch} for this source.")
        return sum(part.rows for part in parts), sum(part.digest for part in parts) % MODULUS

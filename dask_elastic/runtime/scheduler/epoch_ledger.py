"""The ledger of a handoff: the committed epochs, their attempts, and the acknowledgements of readers. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dask_elastic.routing.row_digest import MODULUS
from dask_elastic.runtime.scheduler.query_positions import QueryMarks, QueryPositions
from dask_elastic.vocab.epoch import NAMED, AttemptId, EpochKind, EpochOrigin, EpochRecord, StagedPart
from dask_elastic.vocab.errors import BatchMismatch, HandoffError

KEPT = 1_000
"""Acknowledged epochs of a query that the ledger remembers."""

QUERIES = 10_000
"""Queries that the ledger remembers: those that have committed last, and those of epochs that wait."""

KEPT_IN_CHECKPOINTS = 100
"""Epochs of a query that checkpoints remember; Spark repeats only the newest one."""


@dataclass(frozen=True)
class LedgerSnapshot:
    """What a checkpoint keeps of a ledger, to recognise epochs that come again.

    Parameters
    ----------
    count, rows : int
        Committed epochs, and their rows.
    records : tuple of EpochRecord
        The newest epochs of each query, in the order of the commits, without their parts.
    forgotten : dict of str to int
        By query, the newest epoch that is not remembered.
    positions : QueryMarks
        How far each streaming query has come.
    waiting : tuple of tuple of int
        For each instance, the numbers of the records that it may still read.
    """

    count: int = 0
    rows: int = 0
    records: tuple[EpochRecord, ...] = ()
    forgotten: dict[str, int] = field(default_factory=dict)
    positions: QueryMarks = field(default_factory=QueryMarks)
    waiting: tuple[tuple[int, ...], ...] = ()


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
    queries : int
        How many queries to remember. Programs that run for months may start a new one every minute.
    durable : bool
        Whether instances may read acknowledged records again: these stay until a checkpoint covers them.

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

    def __init__(
        self,
        instances: int,
        kept: int = KEPT,
        positions: QueryPositions | None = None,
        durable: bool = False,
        queries: int = QUERIES,
    ):
        self.instances = instances
        self.durable = durable
        self.positions = positions or QueryPositions()
        self.kept = kept
        self.queries = queries
        self.rows = 0
        self.newest: EpochRecord | None = None
        self.closed = False
        self._count = 0
        # Those that have committed last are the last ones.
        self._queries: OrderedDict[str, OrderedDict[int, EpochRecord]] = OrderedDict()
        self._forgotten: dict[str, int] = {}
        self._batches: OrderedDict[str, EpochRecord] = OrderedDict()
        # The newest record that each instance has read, and the records that it may still read.
        self._taken = [0] * instances
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
        BatchMismatch
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
            raise BatchMismatch(
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
        record = self.draft(query, epoch, parts, origin)
        self.add(record)
        return record

    def draft(self, query: str, epoch: int, parts: Sequence[StagedPart], origin: EpochOrigin = NAMED) -> EpochRecord:
        """Return the record of an epoch that is not known, without committing it.

        Raises
        ------
        HandoffError
            If the source has ended.
        """
        if self.closed:
            raise HandoffError(
                f"query {query}, epoch {epoch}: the source has ended, it takes no more rows. The end of a query "
                'ends the source that it writes to; .option("end", "false") keeps it open for others.'
            )
        rows, digest = self._checked(query, epoch, parts)
        return EpochRecord(self.next_number, query, epoch, rows, digest, tuple(sorted(parts)), origin)

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return self._count + 1

    def add(self, record: EpochRecord) -> None:
        """Add a record: that of `draft`, or the next one of durable storage."""
        self._count = record.number
        self.rows += record.rows
        self._remember(record)
        self.positions.advance(record.query, record.epoch, record.origin)
        self._await(record)
        self._forget(record.query)

    def restore(
        self, snapshot: LedgerSnapshot, records: Iterable[EpochRecord], reached: Sequence[int | None] = ()
    ) -> None:
        """Load a new ledger with what a checkpoint and the records on durable storage contain.

        Parameters
        ----------
        snapshot : LedgerSnapshot
            What the checkpoint contains.
        records : iterable of EpochRecord
            The records on storage, in the order of the commits; some may be older than the snapshot.
        reached : sequence of int or None
            As for `cover`.
        """
        self._count, self.rows = snapshot.count, snapshot.rows
        self._forgotten = dict(snapshot.forgotten)
        self.positions.restore(snapshot.positions)
        for record in snapshot.records:
            self._remember(record)
        for record in records:
            if record.number > self._count:
                self.add(record)
            else:
                self._await(record)
        self.cover(reached)

    def snapshot(self) -> LedgerSnapshot:
        """Return what a checkpoint keeps of this ledger."""
        kept: list[EpochRecord] = [*self._batches.values()][-KEPT_IN_CHECKPOINTS:]
        forgotten = dict(self._forgotten)
        for query, records in self._queries.items():
            newest = sorted(records.values(), key=lambda record: record.number)
            kept += newest[-KEPT_IN_CHECKPOINTS:]
            left_out = [record.epoch for record in newest[:-KEPT_IN_CHECKPOINTS]]
            forgotten[query] = max([*left_out, forgotten.get(query, -1)])
        slim = tuple(replace(record, parts=()) for record in sorted(kept, key=lambda record: record.number))
        waiting = tuple(tuple(record.number for record in pending) for pending in self._pending)
        return LedgerSnapshot(self._count, self.rows, slim, forgotten, self.positions.marks(), waiting)

    def _remember(self, record: EpochRecord) -> None:
        self.newest = record
        if record.origin.kind is EpochKind.BATCH:
            self._batches[record.query] = record
        else:
            self._queries.setdefault(record.query, OrderedDict())[record.epoch] = record
            self._queries.move_to_end(record.query)

    def _await(self, record: EpochRecord) -> None:
        for instance, pending in enumerate(self._pending):
            if record.of_instance(instance):
                pending.append(record)

    def is_committed(self, query: str, epoch: int) -> bool:
        """Return whether an epoch is committed, as far as the ledger remembers."""
        return self._record(query, epoch) is not None

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
        self._taken[instance] = max(self._taken[instance], number)
        if not self.durable:
            self._drop(instance, number)

    def rewind(self, instance: int, number: int) -> None:
        """Note that an instance begins again behind a number."""
        self._taken[instance] = number

    def cover(self, reached: Sequence[int | None]) -> None:
        """Drop the records that a complete checkpoint covers.

        Parameters
        ----------
        reached : sequence of int or None
            For each instance, the number up to which the checkpoint contains all rows of it; None for all numbers.
        """
        for instance, number in enumerate(reached):
            self._drop(instance, self._count if number is None else number)

    def _drop(self, instance: int, number: int) -> None:
        pending = self._pending[instance]
        while pending and pending[0].number <= number:
            self._forget(pending.popleft().query)

    def backlog(self, parts: Sequence[StagedPart] = ()) -> int:
        """Return the most epochs that wait at any instance, of those to which these parts go; of all without parts."""
        instances = {part.instance for part in parts} if parts else range(self.instances)
        return max((self._waiting(instance) for instance in instances), default=0)

    def _waiting(self, instance: int) -> int:
        return sum(record.number > self._taken[instance] for record in self._pending[instance])

    def close(self) -> None:
        """Accept no more epochs; the committed ones are still read."""
        self.closed = True

    def _record(self, query: str, epoch: int) -> EpochRecord | None:
        records = self._queries.get(query)
        return self._batches.get(query) if records is None else records.get(epoch)

    def _forget(self, query: str) -> None:
        """Forget what is too old of a query, of batches without a name, and the query that is too old."""
        waiting = {record.number for pending in self._pending for record in pending}
        while len(self._batches) > self.kept and next(iter(self._batches.values())).number not in waiting:
            self._batches.popitem(last=False)
        records = self._queries.get(query, OrderedDict())
        while len(records) > self.kept and next(iter(records.values())).number not in waiting:
            epoch, _ = records.popitem(last=False)
            self._forgotten[query] = max(epoch, self._forgotten.get(query, -1))
        while len(self._queries) > self.queries:
            oldest, records = next(iter(self._queries.items()))
            if any(record.number in waiting for record in records.values()):
                break
            del self._queries[oldest]
            self._forgotten.pop(oldest, None)
            self.positions.forget(oldest)

    def _checked(self, query: str, epoch: int, parts: Sequence[StagedPart]) -> tuple[int, int]:
        """Return the sums of rows and digests of the parts."""
        partitions = [part.attempt.partition for part in parts]
        if len(set(partitions)) < len(partitions):
            raise HandoffError(f"query {query}, epoch {epoch}: two attempts of one partition among {partitions}.")
        for part in parts:
            if part.attempt[:2] != (query, epoch) or not 0 <= part.instance < self.instances:
                raise HandoffError(f"{part.attempt}: is no part of query {query}, epoch {epoch} for this source.")
        return sum(part.rows for part in parts), sum(part.digest for part in parts) % MODULUS

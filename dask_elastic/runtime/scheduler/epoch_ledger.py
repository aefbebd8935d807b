"""The ledger of a handoff: the committed epochs, their attempts, and the acknowledgements of readers. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

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

KEPT_OF_ALL_QUERIES = 10_000
"""Epochs that checkpoints remember of the queries that have committed last, together; of each other query, only the
newest epoch. A resumed job refuses older ones. Without this bound, checkpoints would grow with each new query."""


@dataclass(frozen=True)
class LedgerSnapshot:
    """What a checkpoint keeps of a ledger, to recognise epochs that come again.

    Parameters
    ----------
    count, rows : int
        Committed epochs, and their rows.
    records : tuple of EpochRecord
        The newest epochs of each query, in any order.
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

    def slim(self) -> LedgerSnapshot:
        """Return the snapshot without the parts of its records, which no repeat needs."""
        return replace(self, records=tuple(replace(record, parts=()) for record in self.records))


class _Known(NamedTuple):
    """A committed epoch, and the highest epoch that its query had committed before; -1 for none."""

    record: EpochRecord
    before: int


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
        self._queries: OrderedDict[str, OrderedDict[int, _Known]] = OrderedDict()
        self._batches: OrderedDict[str, EpochRecord] = OrderedDict()
        # The newest record that each instance has read, and the records that it may still read.
        self._taken = [0] * instances
        self._pending: list[deque[EpochRecord]] = [deque() for _ in range(instances)]
        # By number of a record, the instances that may still read it.
        self._readers: Counter[int] = Counter()

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
            if epoch <= self._forgotten(query):
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
        self._forget([record.query])

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
        self.positions.restore(snapshot.positions)
        for record in sorted(snapshot.records, key=attrgetter("number")):
            self._remember(record, snapshot.forgotten.get(record.query, -1))
        for record in records:
            if record.number > self._count:
                self.add(record)
            else:
                self._await(record)
        self.cover(reached)

    def snapshot(self) -> LedgerSnapshot:
        """Return what a checkpoint keeps of this ledger; the event loop does no more for it than must be done at once.

        The ledger may go on before the snapshot is written: records never change.
        """
        kept = [*itertools.islice(reversed(self._batches.values()), KEPT_IN_CHECKPOINTS)]
        forgotten: dict[str, int] = {}
        for newest in self._newest_of_each():
            kept += [known.record for known in newest]
            forgotten[newest[-1].record.query] = newest[-1].before
        waiting = tuple(tuple(record.number for record in pending) for pending in self._pending)
        return LedgerSnapshot(self._count, self.rows, tuple(kept), forgotten, self.positions.marks(), waiting)

    def _newest_of_each(self) -> Iterator[list[_Known]]:
        """Yield what checkpoints remember of each query, the newest epoch first."""
        room = KEPT_OF_ALL_QUERIES
        for records in reversed(self._queries.values()):
            newest = [*itertools.islice(reversed(records.values()), max(1, min(room, KEPT_IN_CHECKPOINTS)))]
            room -= len(newest)
            yield newest

    def _remember(self, record: EpochRecord, before: int = -1) -> None:
        """Remember a record, behind those of its query; the first one follows epochs up to `before`."""
        self.newest = record
        if record.origin.kind is EpochKind.BATCH:
            self._batches[record.query] = record
            return
        records = self._queries.setdefault(record.query, OrderedDict())
        if records:
            last = next(reversed(records.values()))
            before = max(last.before, last.record.epoch)
        records[record.epoch] = _Known(record, before)
        self._queries.move_to_end(record.query)

    def _await(self, record: EpochRecord) -> None:
        for instance, pending in enumerate(self._pending):
            if record.of_instance(instance):
                pending.append(record)
                self._readers[record.number] += 1

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
        # From the end: a durable ledger keeps many records that the instance has read.
        newer = [*itertools.takewhile(lambda record: record.number > after, reversed(self._pending[instance]))]
        return newer[::-1]

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
        queries = set()
        while pending and pending[0].number <= number:
            record = pending.popleft()
            self._readers[record.number] -= 1
            if not self._readers[record.number]:
                del self._readers[record.number]
                queries.add(record.query)
        self._forget(queries)

    def backlog(self, parts: Sequence[StagedPart] = ()) -> int:
        """Return the most epochs that wait at any instance, of those to which these parts go; of all without parts."""
        instances = {part.instance for part in parts} if parts else range(self.instances)
        return max((self._waiting(instance) for instance in instances), default=0)

    def _waiting(self, instance: int) -> int:
        return len(self.pending(instance, self._taken[instance]))

    def close(self) -> None:
        """Accept no more epochs; the committed ones are still read."""
        self.closed = True

    def _record(self, query: str, epoch: int) -> EpochRecord | None:
        records = self._queries.get(query)
        if records is None:
            return self._batches.get(query)
        known = records.get(epoch)
        return None if known is None else known.record

    def _forgotten(self, query: str) -> int:
        """Return the highest epoch of a query that is not remembered; -1 for none."""
        records = self._queries.get(query)
        return next(iter(records.values())).before if records else -1

    def _forget(self, queries: Iterable[str]) -> None:
        """Forget what is too old of some queries, of batches without a name, and the queries that are too old."""
        while len(self._batches) > self.kept and not self._is_pending(next(iter(self._batches.values()))):
            self._batches.popitem(last=False)
        for query in queries:
            records = self._queries.get(query, OrderedDict())
            while len(records) > self.kept and not self._is_pending(next(iter(records.values())).record):
                records.popitem(last=False)
        while len(self._queries) > self.queries:
            oldest, records = next(iter(self._queries.items()))
            if any(self._is_pending(known.record) for known in records.values()):
                break
            del self._queries[oldest]
            self.positions.forget(oldest)

    def _is_pending(self, record: EpochRecord) -> bool:
        return record.number in self._readers

    def _checked(self, query: str, epoch: int, parts: Sequence[StagedPart]) -> tuple[int, int]:
        """Return the sums of rows and digests of the parts."""
        partitions = [part.attempt.partition for part in parts]
        if len(set(partitions)) < len(partitions):
            raise HandoffError(f"query {query}, epoch {epoch}: two attempts of one partition among {partitions}.")
        for part in parts:
            if part.attempt[:2] != (query, epoch) or not 0 <= part.instance < self.instances:
                raise HandoffError(f"{part.attempt}: is no part of query {query}, epoch {epoch} for this source.")
        return sum(part.rows for part in parts), sum(part.digest for part in parts) % MODULUS

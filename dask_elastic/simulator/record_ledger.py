"""Checks that state records are processed once by each shard, in order with the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.task_queue import Work
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import PartialsMoved, StateRecord


class _Shards:
    """The rows of each shard of one executor, and the records that they wait for, each with the rows before it."""

    def __init__(self, shards: int) -> None:
        self.accepted: npt.NDArray[np.int64] = np.zeros(shards, np.int64)
        self.settled: npt.NDArray[np.int64] = np.zeros(shards, np.int64)
        self.records: list[deque[tuple[StateRecord, int]]] = [deque() for _ in range(shards)]
        # Of shards whose windows two tasks had: the sides on which the records that they wait for were processed.
        self.sides: dict[int, dict[StateRecord, set[bool]]] = {}


class RecordLedger:
    """Compares, shard by shard, the order in which rows and state records were entered and settled.

    Examples
    --------
    >>> from dask_elastic.vocab.state_record import TimersDue
    >>> ledger, executor, space = RecordLedger(), ExecutorId("per_key", 0), KeySpace(1, 2)
    >>> ledger.entered(executor, TimersDue(event=5), space)
    >>> ledger.check_complete()
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.ProtocolError: per_key[0]: shards [0, 1] have not processed all state records
    """

    def __init__(self) -> None:
        self.records = 0
        self._executors: dict[ExecutorId, _Shards] = {}

    def accepted(self, executor: ExecutorId, batch: Batch, space: KeySpace) -> None:
        """Count rows that an executor received."""
        assert batch.hashes is not None
        self._shards(executor, space).accepted += np.bincount(space.shard_of(batch.hashes), minlength=space.shards)

    def entered(
        self, executor: ExecutorId, record: StateRecord, space: KeySpace, shards: Iterable[int] | None = None
    ) -> None:
        """Note a record, which some shards, all by default, process behind the rows that were received before."""
        found = self._shards(executor, space)
        self.records += 1
        for shard in range(space.shards) if shards is None else shards:
            found.records[shard].append((record, int(found.accepted[shard])))

    def moved_first(self, executor: ExecutorId, shard: int, space: KeySpace) -> None:
        """Note that the record that was entered last for a shard is processed before all rows that wait."""
        found = self._shards(executor, space)
        record, _ = found.records[shard].pop()
        found.records[shard].appendleft((record, int(found.settled[shard])))

    def dropped(self, executor: ExecutorId, record: StateRecord, shard: int, space: KeySpace) -> None:
        """Note that a shard does not process a record that waits: it has, at another executor."""
        waiting = self._shards(executor, space).records[shard]
        waiting.remove(next(entry for entry in waiting if entry[0] == record))

    def settled(self, executor: ExecutorId, work: Work, space: KeySpace) -> None:
        """Compare settled work with what each shard has to process next; what is replayed counts once.

        Raises
        ------
        ProtocolError
            If a shard processed a record too early, too late or twice.
        """
        found = self._shards(executor, space)
        for piece in work.pieces:
            if piece.receipt.settled or isinstance(work.record, PartialsMoved):
                continue
            counts = piece.rows_by_shard(space)
            for shard in np.flatnonzero(counts).tolist():
                waiting = found.records[shard]
                if work.record is not None and (work.side is not None or shard in found.sides):
                    _settled_on_side(executor, work, shard, found)
                elif shard in found.sides or (work.side is not None and not work.side.later):
                    # Two tasks process its rows, each in an order of its own, and some of them twice.
                    continue
                elif work.record is None:
                    found.settled[shard] += counts[shard]
                    if waiting and found.settled[shard] > waiting[0][1]:
                        raise ProtocolError(f"{executor}: a row of shard {shard} overtook {waiting[0][0]}")
                elif not waiting or waiting[0] != (work.record, int(found.settled[shard])):
                    raise ProtocolError(
                        f"{executor}: shard {shard} processed {work.record} after {found.settled[shard]} rows; next it "
                        f"waits for {waiting[0] if waiting else 'no record'}"
                    )
                else:
                    waiting.popleft()

    def check_complete(self) -> None:
        """Check that every shard has processed all records.

        Raises
        ------
        ProtocolError
            If one has not.
        """
        for executor, found in self._executors.items():
            lacking = [shard for shard, waiting in enumerate(found.records) if waiting]
            if lacking:
                raise ProtocolError(f"{executor}: shards {lacking} have not processed all state records")

    def _shards(self, executor: ExecutorId, space: KeySpace) -> _Shards:
        if executor not in self._executors:
            self._executors[executor] = _Shards(space.shards)
        return self._executors[executor]


def _settled_on_side(executor: ExecutorId, work: Work, shard: int, found: _Shards) -> None:
    """Count a record that a shard processes on both sides of an event time, or on all of them at once."""
    assert work.record is not None
    sides = found.sides.setdefault(shard, {}).setdefault(work.record, set())
    now = {False, True} if work.side is None else {work.side.later}
    waiting = [record for record, _ in found.records[shard]]
    if sides & now or work.record not in waiting:
        raise ProtocolError(f"{executor}: shard {shard} processed {work.record} twice")
    sides |= now
    if len(sides) == 2:
        del found.records[shard][waiting.index(work.record)]

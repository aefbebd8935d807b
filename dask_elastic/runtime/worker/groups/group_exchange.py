"""Delivery in a job whose key groups move: what was split by an old table is split again, and senders can be paused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.identity import ExecutorId


class GroupExchange(Exchange):
    """Delivers between the instances of a job whose key groups move between executors.

    Parameters
    ----------
    *args, **kwargs
        As for `Exchange`.

    Notes
    -----
    Decisions 86 and 89. A batch takes credit of the executor that gets it only while its send is counted under the
    table by which it was split: a batch that waits for credit belongs to no version.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resumed = threading.Event()

    def deliver(self, origin: ExecutorId, outputs: Iterable[Delivery]) -> int:
        """Hand batches to the next receivers; waits for credit, and while their groups are moving; see `Exchange`."""
        total, left = 0, tuple(outputs)
        while left:
            nbytes, left = self.deliver_now(origin, left)
            total += nbytes
            if left:
                self._wait_to_send(origin, left[0].target)
        return total

    def deliver_now(self, origin: ExecutorId, outputs: Sequence[Delivery]) -> tuple[int, tuple[Delivery, ...]]:
        """Hand batches to the next receivers until one has to wait; returns the bytes delivered, and the others."""
        total, leased, waiting = 0, not self._lease.needed, deque(outputs)
        with DEFERRED:
            while waiting and (leased or self._lease.is_open):
                sent = self._send_first(origin, waiting)
                if sent is None:
                    break
                total += sent
        return total, tuple(waiting)

    def _send_first(self, origin: ExecutorId, waiting: deque[Delivery]) -> int | None:
        """Send the first batch, split by the newest table; returns its bytes, None if it has to wait."""
        target, batch = waiting[0]
        sends = self.tier.sends(origin, target.component)
        if sends is None:
            if not self._gate(origin, target).try_acquire(batch.nbytes):
                return None
            waiting.popleft()
            self._bring(target.index, target, origin, batch, batch.nbytes)
            return batch.nbytes
        table, sent = sends.begin(), None
        # A table that is used now says whether batches pass: `paused` is set before the next table is current.
        if not sends.paused:
            self._split_again(table, waiting)
            target, batch = waiting[0]
            nbytes = batch.nbytes
            if self._gate(origin, target).try_acquire(nbytes):
                waiting.popleft()
                self._bring(table.homes[target.index], target, origin, batch, nbytes)
                sent = nbytes
        for mark in sends.end(table):
            self.send_mark(origin, target.component, mark)
        return sent

    def _split_again(self, table: GroupTable, waiting: deque[Delivery]) -> None:
        """Split the first batch by a table, if it was split by another one."""
        (component, _), batch = waiting[0]
        if batch.version == table.version:
            return
        assert batch.hashes is not None, f"rows for {component!r} have hashes"
        assert isinstance(batch.rows, pa.RecordBatch), "rows that leave an instance are copied"
        groups = self.tier.spaces[component].shard_of(batch.hashes)
        parts = table.split(batch.rows, batch.hashes, groups)
        waiting.popleft()
        for executor, rows, hashes in reversed(parts):
            part = batch._replace(rows=rows, hashes=hashes, row_bytes=None, version=table.version)
            waiting.appendleft(Delivery(ExecutorId(component, executor), part))

    def _wait_to_send(self, origin: ExecutorId, target: ExecutorId) -> None:
        """Return when a batch may be sent to an executor or a sink; another table may be current by then."""
        self._lease.wait()
        sends = self.tier.sends(origin, target.component)
        if sends is not None and sends.paused:
            with self._waits_of(origin).one():
                while sends.paused:
                    if self._aborted:
                        raise Aborted
                    self._resumed.wait()
        self._gate(origin, target).wait()

    def pause(self) -> None:
        """Announce that senders are about to be paused; see `FirstTier.switch_groups`."""
        with self._lock:
            if not self._aborted:
                self._resumed.clear()

    def resume(self) -> None:
        """Wake the senders that were paused."""
        self._resumed.set()

    def abort(self) -> None:
        """Let no batch pass any more: senders that wait raise `Aborted`."""
        super().abort()
        self._resumed.set()

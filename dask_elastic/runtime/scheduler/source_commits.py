"""The commits of one source for Spark: the ledger, the room for epochs, and the records on durable storage."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.meters import Rate
from dask_elastic.runtime.protocol.handoff_calls import CommitEpoch
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.queue_copies import EpochCopies
from dask_elastic.vocab.epoch import EpochRecord, StagedPart
from dask_elastic.vocab.errors import CheckpointError, HandoffError

RATE_SECONDS = 10.0
"""Rows come in micro-batches, so their rate is measured over several of them."""


class SourceCommits:
    """The epochs of one source of a job.

    Parameters
    ----------
    source : str
        The source.
    generation : int
        The job's generation that reads them.
    ledger : EpochLedger
        The committed epochs.
    spool : EpochSpool or None
        Where each epoch is written before its commit returns; None for a source without.
    limit : int
        How many epochs may wait at an instance.
    copies : sequence of EpochCopies
        The Dask queue of each instance.
    check_owned : callable, optional
        Raises `CheckpointSuperseded` once another scheduler has continued the job; may block.

    Attributes
    ----------
    committing : asyncio.Lock
        Held while an epoch is committed.
    """

    def __init__(
        self,
        source: str,
        generation: int,
        ledger: EpochLedger,
        spool: EpochSpool | None,
        limit: int,
        copies: Sequence[EpochCopies],
        check_owned: Callable[[], None] = lambda: None,
    ):
        self.source = source
        self.generation = generation
        self.ledger = ledger
        self.spool = spool
        self.limit = limit
        self.copies = tuple(copies)
        self.committing = asyncio.Lock()
        self._check_owned = check_owned
        self._writing = False
        # Whether storage may have the next record: it reported a failure, or an earlier scheduler has left it.
        self._uncertain = spool is not None
        self.rate = Rate(RATE_SECONDS)
        self._taken = asyncio.Event()

    def taken(self) -> None:
        """Wake the commits that wait for room."""
        self._taken.set()
        self._taken = asyncio.Event()

    async def has_room(self, parts: Sequence[StagedPart], wait: float) -> bool:
        """Return whether an epoch may be committed, after waiting up to `wait` seconds for room."""
        deadline = asyncio.get_running_loop().time() + wait
        while self.ledger.backlog(parts) >= self.limit and not self.ledger.closed:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._taken.wait(), left)
        return True

    async def settled(self) -> None:
        """Return when no commit is in progress; once the ledger is closed, none waits for room."""
        async with self.committing:
            pass

    @property
    def closed(self) -> bool:
        """Whether no epoch follows, also none whose record is being written."""
        return self.ledger.closed and not self._writing

    async def adopt(self) -> EpochRecord | None:
        """Add the record that storage has although its commit failed; returns it. `committing` is held.

        No commit of it has returned, so it may as well be dropped: if its rows are missing, it is.

        Raises
        ------
        CheckpointError
            If storage fails, or another scheduler has continued the job.
        """
        if self.spool is None or not self._uncertain or self.ledger.closed:
            return None
        self._writing = True
        try:
            found = await in_thread(_adopted, self.spool, self.ledger.next_number, self._check_owned)
            if found is not None:
                self.ledger.add(found)
        finally:
            self._writing = False
        self._uncertain = False
        return found

    async def commit(self, call: CommitEpoch) -> EpochRecord:
        """Commit an epoch that is not known, while `committing` is held.

        Raises
        ------
        HandoffError
            If the source has ended, or rows were lost before their commit.
        CheckpointError
            If the record cannot be written, or another scheduler has continued the job.
        """
        record = self.ledger.draft(call.query, call.epoch, call.parts, call.origin)
        if self.spool is not None:
            self._writing = True
            try:
                await in_thread(_write, self.spool, record, self._check_owned)
                self.ledger.add(record)
            except CheckpointError:
                self._uncertain = True
                raise
            finally:
                self._writing = False
        else:
            self.ledger.add(record)
        self.rate.add(record.rows, time.monotonic())
        return record


def _adopted(spool: EpochSpool, number: int, check_owned: Callable[[], None]) -> EpochRecord | None:
    """Return the record that storage has of a number, and whose commit has failed; may block."""
    found = spool.found(number)
    # As in `_write`: one that appears later may be missing in the records of a scheduler that continues the job.
    check_owned()
    if found is not None and spool.missing(part.file for part in found.parts if part.file is not None):
        spool.withdraw(number)
        return None
    return found


def _write(spool: EpochSpool, record: EpochRecord, check_owned: Callable[[], None]) -> None:
    """Write the record of an epoch, whose rows are on storage; may block."""
    files = [part.file for part in record.parts if part.file is not None]
    # Rows of an attempt that was given up, or staged before the job was resumed, are deleted.
    if len(files) < len(record.parts) or spool.missing(files):
        raise HandoffError(
            f"query {record.query}, epoch {record.epoch}: its staged rows are lost; write the epoch again."
        )
    try:
        spool.append(record)
    except CheckpointError:
        # An object store may fail after it has written.
        if not spool.contains(record):
            raise
    # A scheduler that continues the job reserves a generation, then reads the records: it has this one, or is seen.
    check_owned()

"""The spool of a source on its worker: batches are numbered at once, and a thread makes groups of them durable."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from dask_elastic.checkpoint.spool.entry import Entry
from dask_elastic.checkpoint.spool.log import GenerationEnded, SpoolLog
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.vocab.errors import CheckpointError

logger = logging.getLogger("dask_elastic.checkpoint")

GROUP_SECONDS = 0.002
"""The least time from the beginning of an append of several batches to the next: those that arrive meanwhile share
one. A sender that waits for each batch does not wait for this."""

RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 10.0
"""Seconds after which an append that failed is repeated, at first and at most. They double with each failure,
because each may leave a file on storage."""


class Spool:
    """Keeps what one instance of a source accepts until a checkpoint covers it.

    Rows may be processed before they are durable. Senders, and checkpoints, wait until they are.

    Parameters
    ----------
    log : SpoolLog
        The log.
    after : int
        The newest entry that the job's checkpoint covers.
    keep : int
        The number of complete checkpoints from which the job may be restarted.

    Attributes
    ----------
    offset : int
        The number of the entry that the source has read last.
    newest : int
        The number of the newest entry that was accepted, durable or not.
    durable : int
        The number of the newest entry that is on storage.
    ended : bool
        Whether the end of the input was accepted.
    """

    def __init__(self, log: SpoolLog, after: int = 0, keep: int = 1):
        self._log = log
        self._keep = keep
        self.offset = after
        self.newest = self.durable = log.last
        self.ended = log.ended
        self._after = after
        self._senders = log.senders.copy()
        self._waiting: list[Entry] = []
        self._reached: deque[tuple[int, int]] = deque()
        self._complete: deque[int] = deque()
        self._watchers: list[Callable[[int], None]] = []
        self._callbacks: list[tuple[int, Callable[[], None]]] = []
        # Nothing is written for as long as `_held` is above `_released`, both numbers of checkpoints.
        self._held = self._released = 0
        self._writing = False
        self._changed = threading.Condition(threading.Lock())
        self._stopped = threading.Event()

    # what the source accepts

    def last_of(self, sender: str) -> int:
        """Return a sender's number of the newest batch that was accepted from it; 0 for none."""
        with self._changed:
            return self._senders.last(sender)

    def admit(
        self, sender: str, sequence: int, rows: pa.RecordBatch | None, due: float | None, arrived: float
    ) -> int | None:
        """Assign the next number to a batch and have it made durable; called in the order in which it is read.

        Parameters
        ----------
        sender : str
            Who sent it; empty if it does not repeat batches.
        sequence : int
            The sender's number.
        rows : RecordBatch or None
            The rows; None for the end of the input.
        due : float or None
            When the rows were due.
        arrived : float
            When they arrived.

        Returns
        -------
        int or None
            The number of the entry; None if the batch was accepted before.
        """
        with self._changed:
            if not self._senders.admit(sender, sequence):
                return None
            self.newest += 1
            self._waiting.append(Entry(self.newest, sender, sequence, rows, due, arrived))
            self.ended |= rows is None
            self._changed.notify_all()
            return self.newest

    def replayed(self) -> Iterator[Entry]:
        """Yield the entries of earlier generations that the checkpoint does not cover.

        Yields
        ------
        Entry
            In order; `offset` is the number of the last one.
        """
        for entry in self._log.entries(self._after):
            if self._stopped.is_set():
                return
            if entry.rows is not None:
                self.offset = entry.number
                yield entry

    # what waits until entries are durable

    def watch(self, note: Callable[[int], None]) -> None:
        """Have a function called with the newest durable entry after each append."""
        with self._changed:
            self._watchers.append(note)

    def unwatch(self, note: Callable[[int], None]) -> None:
        """Undo `watch`; the function may be in progress."""
        with self._changed:
            if note in self._watchers:
                self._watchers.remove(note)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call a function once everything that was accepted so far is durable: now, or in the thread of the spool."""
        with self._changed:
            if self.durable < self.newest:
                self._callbacks.append((self.newest, callback))
                return
        callback()

    def wait_durable(self, timeout: float) -> bool:
        """Wait until everything that was accepted so far is durable; returns whether it is within `timeout` seconds."""
        with self._changed:
            number = self.newest
            self._changed.wait_for(lambda: self.durable >= number or self._stopped.is_set(), timeout)
            return self.durable >= number

    # checkpoints

    def reached(self, checkpoint: int, offset: int) -> None:
        """Note that a checkpoint covers the entries up to a number."""
        with self._changed:
            self._reached.append((checkpoint, offset))

    def complete(self, checkpoint: int) -> None:
        """Note that a checkpoint is complete: entries that none of the newest ones needs are deleted."""
        with self._changed:
            while self._reached and self._reached[0][0] <= checkpoint:
                number, offset = self._reached.popleft()
                if number == checkpoint:
                    self._complete.append(offset)
            self._changed.notify_all()

    def hold(self, checkpoint: int, timeout: float) -> bool:
        """Write nothing more, for a copy of the spool; what is accepted meanwhile is not acknowledged.

        Parameters
        ----------
        checkpoint : int
            The checkpoint for which to wait; `release` ends this.
        timeout : float
            Seconds.

        Returns
        -------
        bool
            Whether nothing is being written within `timeout` seconds.
        """
        with self._changed:
            self._held = max(checkpoint, self._held)
            return self._changed.wait_for(lambda: not self._writing, timeout)

    def release(self, checkpoint: int) -> None:
        """Continue behind `hold` for a checkpoint, also if that is still to come: calls may overtake each other."""
        with self._changed:
            self._released = max(checkpoint, self._released)
            self._changed.notify_all()

    # the thread

    def start(self, threads: JobThreads, name: str) -> None:
        """Start the thread that writes."""
        threads.start(name, self._run)

    @property
    def stopped(self) -> bool:
        """Whether nothing is made durable any more: the job has ended here, or runs elsewhere."""
        return self._stopped.is_set()

    def abort(self) -> None:
        """Have the thread end; what is not durable now was not acknowledged."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()
                    self._changed.wait_for(self._has_work)
                    self._writing = not self._stopped.is_set()
                    entries, self._waiting = self._waiting, []
                    covered = self._covered()
                began = time.monotonic()
                if not self._append(entries):
                    return
                if covered is not None:
                    self._delete(covered)
                if len(entries) > 1:
                    self._stopped.wait(max(0.0, began + GROUP_SECONDS - time.monotonic()))
        finally:
            with self._changed:
                self._writing = False
            self._log.close()
            # Nothing will be durable any more.
            self.abort()

    def _has_work(self) -> bool:
        if self._held > self._released:
            return self._stopped.is_set()
        return bool(self._waiting) or len(self._complete) > self._keep or self._stopped.is_set()

    def _covered(self) -> int | None:
        """Return the newest entry that no restart needs, if that has changed."""
        found = None
        while len(self._complete) > self._keep:
            self._complete.popleft()
            found = self._complete[0]
        return found

    def _append(self, entries: list[Entry]) -> bool:
        """Make entries durable, trying again until it succeeds; returns False once the job has ended here."""
        wait = 0.0
        while entries:
            if self._stopped.is_set():
                return False
            try:
                self._log.append(entries)
                break
            except GenerationEnded as error:
                logger.warning("a source stops accepting rows: %s", error)
                return False
            except CheckpointError as error:
                if not wait and not self._stopped.is_set():
                    logger.warning("rows of a source wait, and are not acknowledged: %s", error)
                wait = min(2 * wait, LONGEST_RETRY_SECONDS) or RETRY_SECONDS
                self._stopped.wait(wait)
        self._note_durable(self._log.last)
        return True

    def _note_durable(self, number: int) -> None:
        with self._changed:
            self.durable = number
            due = [callback for limit, callback in self._callbacks if limit <= number]
            self._callbacks = [waiting for waiting in self._callbacks if waiting[0] > number]
            watchers = list(self._watchers)
            self._changed.notify_all()
        for callback in due:
            callback()
        for note in watchers:
            note(number)

    def _delete(self, number: int) -> None:
        try:
            self._log.delete_through(number)
        except CheckpointError as error:
            if not self._stopped.is_set():
                logger.warning("old rows of a source stay on storage: %s", error)

"""The queue between `Job.send` and a pushed source."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.runtime.worker.buffers.read_ahead import JOINED_ROWS
from dask_elastic.runtime.worker.buffers.shortcut import Shortcut
from dask_elastic.runtime.worker.buffers.spool import Spool
from dask_elastic.vocab.errors import SourceError

MAILBOX_BYTES = 32 * 2**20
"""Bytes that may wait in a mailbox."""

BATCH_BYTES = 1_024
"""Bytes that a batch counts beyond its rows: about what the objects of a small batch occupy."""


class _Letter(NamedTuple):
    rows: pa.RecordBatch
    due: float | None
    arrived: float
    nbytes: int
    number: int = 0


class SentBatch(NamedTuple):
    """By what a batch is recognised that is sent again.

    Parameters
    ----------
    sender : str
        Who sends it; empty if it is not sent again.
    sequence : int
        The sender's number for it.
    """

    sender: str = ""
    sequence: int = 0


_UNNAMED = SentBatch()


class Mailbox:
    """Batches from `Job.send` that the source has not read yet; bounded in bytes. Iterating joins the waiting ones.

    One thread iterates. While it waits, any other one may send what arrives by a shortcut: it *passes* the batch by,
    and the reading thread takes nothing meanwhile.

    Parameters
    ----------
    limit : int
        Bytes that may wait, and one batch more.
    spool : Spool, optional
        Makes the batches durable; what it has of earlier generations is read first.

    Attributes
    ----------
    due : float or None
        When the rows read last were due, as their sender has said; the oldest of joined ones.
    arrived : float
        When the oldest of the rows read last arrived here, in seconds since the epoch.
    shortcut : Shortcut or None
        How a thread that brings rows sends them itself; None where all rows are to be read.
    """

    def __init__(self, limit: int = MAILBOX_BYTES, spool: Spool | None = None):
        self.limit = limit
        self.spool = spool
        self.due: float | None = None
        self.arrived = 0.0
        self.shortcut: Shortcut | None = None
        # Whether the reading thread waits, and whether another one sends rows.
        self._waits = self._passing = False
        self._letters: deque[_Letter] = deque()
        self._bytes = 0
        self._closed = spool is not None and spool.ended
        # Taken for every batch: without the condition's methods, which are Python code.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watchers: list[Callable[[], None]] = []

    def offer(
        self,
        rows: pa.RecordBatch,
        timeout: float,
        due: float | None = None,
        sent: SentBatch = _UNNAMED,
        brings: bool = False,
        nbytes: int | None = None,
    ) -> bool:
        """Add a batch, waiting up to `timeout` seconds for room; returns whether there was room.

        A batch that was added before, as far as the spool knows, is not added again.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        timeout : float
            Seconds.
        due : float, optional
            When the rows were due, in seconds since the epoch.
        sent : SentBatch, optional
            Sender and number.
        brings : bool
            Whether the caller calls `bring` soon: the reading thread need not be woken before.
        nbytes : int, optional
            Bytes that the rows occupy, if the caller knows them: counting takes as long as decoding.

        Raises
        ------
        SourceError
            If the source has ended.
        """
        letter = _Letter(rows, due, time.time(), (rows.nbytes if nbytes is None else nbytes) + BATCH_BYTES)
        with self._lock:
            if self._bytes >= self.limit and not self._closed:
                # What waits for `bring` is read instead, since the caller waits as well.
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._bytes < self.limit, timeout)
                if self._bytes >= self.limit and not self._closed:
                    return False
            if self._closed:
                raise SourceError("the source has ended: it takes no more rows")
            if self.spool is not None:
                number = self.spool.admit(*sent, rows, due, letter.arrived)
                if number is None:
                    return True
                letter = letter._replace(number=number)
            self._letters.append(letter)
            self._bytes += letter.nbytes
            if not brings or self.shortcut is None:
                self._changed.notify_all()
            return True

    def bring(self) -> None:
        """Send what waits in the calling thread, if the source is idle and the rows are few; else have it read."""
        with self._lock:
            if self._passing or not self._letters:
                # The thread that passes rows by has the others read.
                return
            if not self._may_pass():
                self._changed.notify_all()
                return
            was_full = self._bytes >= self.limit
            taken = self._take()
            self._passing = True
        rows, due, arrived = _joined(taken)
        assert self.shortcut is not None, "without one nothing passes"
        if not self.shortcut.send(rows, arrived if due is None else min(due, time.time())):
            # The job fails: what is behind these rows must not leave.
            return
        with self._lock:
            self._passing = False
            if was_full or self._letters or self._closed:
                self._changed.notify_all()

    def _may_pass(self) -> bool:
        """Begin to use the shortcut, if it is free, and nothing that waits has to be read."""
        if self.shortcut is None or not self._waits or self._closed:
            return False
        return self.shortcut.begin(sum(letter.rows.num_rows for letter in self._letters))

    @property
    def closed(self) -> bool:
        """Whether it takes no more rows."""
        return self._closed

    def close(self) -> None:
        """End the source after the batches in the mailbox."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            watchers, self._watchers = self._watchers, []
        for note_end in watchers:
            note_end()

    def end(self) -> None:
        """End the source behind the batches in the mailbox, also after a restart."""
        with self._lock:
            # Nothing is added behind the mark.
            self._closed = True
            if self.spool is not None and not self.spool.ended:
                self.spool.admit("", 0, None, None, time.time())
        self.close()

    def abort(self) -> None:
        """Close the mailbox, because the job has ended."""
        if self.spool is not None:
            self.spool.abort()
        with self._lock:
            # The reading thread must not wait for rows that have failed.
            self._passing = False
        self.close()

    def watch(self, note_end: Callable[[], None]) -> None:
        """Have a function called once the mailbox takes no more rows: at once if it is closed already."""
        with self._lock:
            if not self._closed:
                self._watchers.append(note_end)
                return
        note_end()

    def unwatch(self, note_end: Callable[[], None]) -> None:
        """Undo `watch`; the function may be in progress."""
        with self._lock:
            if note_end in self._watchers:
                self._watchers.remove(note_end)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for entry in () if self.spool is None else self.spool.replayed():
            self.arrived, self.due = entry.arrived, entry.due
            yield entry.rows
        while True:
            with self._lock:
                while self._passing or not (self._letters or self._closed):
                    self._waits = True
                    self._changed.wait()
                    self._waits = False
                if not self._letters:
                    return
                taken = self._take()
                self._changed.notify_all()
            if self.spool is not None:
                self.spool.offset = taken[-1].number
            rows, self.due, self.arrived = _joined(taken)
            yield rows

    def _take(self) -> list[_Letter]:
        """Remove the first batch and those behind it that can be joined with it."""
        first = self._letters.popleft()
        taken, count = [first], first.rows.num_rows
        while self._letters and (count := count + self._letters[0].rows.num_rows) <= JOINED_ROWS:
            following = self._letters[0]
            if (following.due is None) != (first.due is None) or not following.rows.schema.equals(first.rows.schema):
                break
            taken.append(self._letters.popleft())
        self._bytes -= sum(letter.nbytes for letter in taken)
        return taken


def _joined(letters: list[_Letter]) -> tuple[pa.RecordBatch, float | None, float]:
    """Return the rows of letters that can be joined, when the oldest were due, and when the first ones arrived."""
    first = letters[0]
    if len(letters) == 1:
        return first.rows, first.due, first.arrived
    due = first.due if first.due is None else min(letter.due or 0.0 for letter in letters)
    return pa.concat_batches([letter.rows for letter in letters]), due, first.arrived

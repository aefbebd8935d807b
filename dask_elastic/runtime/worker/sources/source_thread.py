"""One instance of a source: a thread that sends its rows, and one that reads them if reading may block."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.emitter import Emitter
from dask_elastic.meters import BriefWork, Departures, InlineCost, SendSize
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.read_ahead import JOINED_ROWS, ReadAhead
from dask_elastic.runtime.worker.buffers.shortcut import Sent, Shortcut
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sources.read_positions import ReadPositions
from dask_elastic.runtime.worker.sources.source_barriers import SourceBarriers
from dask_elastic.runtime.worker.sources.source_reading import SourceReading
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.topology.pace import SLICE_SECONDS, Pace
from dask_elastic.topology.source import Source
from dask_elastic.topology.ticks import LONGEST_TICK, TICKS
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from distributed import Client


class SourceThread:
    """Reads one instance of a source, paces it, and sends its rows on.

    Parameters
    ----------
    identity : ExecutorId
        Which instance of which source.
    source : Source
        The source.
    instances : int
        How many instances share it.
    emitter : Emitter
        Runs what is fused with the source, and routes its rows.
    mailbox : Mailbox or EpochBuffer
        Where rows wait that are pushed to the source.
    clock : SourceClock or None
        Makes watermarks; None for a source without event time.
    threads : JobThreads
        Runs the threads.
    exchange : Exchange
        Carries batches and watermarks.
    queue_reader : callable
        ``queue_reader(name, stopping)`` returns a reader of an output queue of some job.
    client : callable
        ``client()`` connects a client to the cluster.
    finished : callable
        Called when the last row is delivered.
    reached : callable or None
        In a job with checkpoints: called with the number of a checkpoint, the instance, and the position at which it
        has sent the barrier.
    start : SourcePosition
        Where to begin.
    agree : callable or None
        ``agree(found)`` returns what the first instance of the source has found.
    longest_tick : float
        The most time between two ticks at which rows of a source with a rate leave, in seconds.
    """

    def __init__(
        self,
        identity: ExecutorId,
        source: Source,
        instances: int,
        emitter: Emitter,
        mailbox: Mailbox | EpochBuffer,
        clock: SourceClock | None,
        threads: JobThreads,
        exchange: Exchange,
        queue_reader: Callable[[str, Callable[[], bool]], QueueReader],
        client: Callable[[], Client],
        finished: Callable[[ExecutorId], None],
        reached: Callable[[int, ExecutorId, SourcePosition], None] | None,
        start: SourcePosition,
        agree: Callable[[bytes], bytes] | None = None,
        longest_tick: float = LONGEST_TICK,
    ):
        self.identity = identity
        self.source = source
        self.instances = instances
        self.emitter = emitter
        self.mailbox = mailbox
        self.spool = mailbox.spool if isinstance(mailbox, Mailbox) else None
        self.clock = clock
        self.threads = threads
        self.exchange = exchange
        self._finished = finished
        self._reached = reached
        self._start = start
        self._positions = ReadPositions(start)
        self.barriers = SourceBarriers(
            identity,
            exchange.emit_barrier,
            None if reached is None else self._note_reached,
            self._position,
            self._last_position,
            lambda: threads.ended,
        )
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._drained = False
        positions = None if reached is None else self._positions
        self._reading = SourceReading(
            identity, source, instances, start, mailbox, threads, positions, self._stop.is_set, queue_reader, client,
            agree,
        )  # fmt: skip
        self._read_ahead = ReadAhead() if clock is None else ReadAhead(until=clock.due)
        self._departures = Departures()
        rate = source.rate and source.rate / instances
        self._pace = Pace(rate, time.time(), ticks=TICKS, longest_tick=longest_tick)
        self._brief_work, self._cost = BriefWork(), InlineCost()
        self._rest: Sent | None = None  # what the sending thread has to send first
        self._size = SendSize(functools.partial(exchange.join_bytes, identity))

    def start(self) -> None:
        """Start reading."""
        self._departures.per_second(time.monotonic())
        if self._start.ended:
            self.mailbox.close()
            self._end()
            return
        if self.spool is not None:
            self.spool.start(self.threads, f"{self.identity}-spool")
        if self.source.blocks:
            self.threads.start(f"{self.identity}-reader", self._run_reader)
        self.threads.start(str(self.identity), self._run)

    def stop(self) -> None:
        """Stop reading; rows that were read, or accepted from `Job.send`, are processed."""
        self._drained = True
        if not self.source.pushed:
            # The source ends without waiting for a reader that blocks in user code.
            self._stop.set()
            self._woken.set()
            self._read_ahead.close()
        self.mailbox.close()

    def begin_checkpoint(self, checkpoint: int, halts: bool = False) -> None:
        """Have the sending thread send the barrier of a checkpoint behind what it is sending; see `SourceBarriers`."""
        if self.barriers.begin(checkpoint, halts):
            self._woken.set()
            self._read_ahead.poke()

    def _position(self) -> SourcePosition:
        newest = None if self.clock is None else self.clock.newest
        position = replace(self._positions.sent(self.rows), event_time=newest)
        # What a source that cannot rewind yields after a restart are other rows: none of them is to be skipped.
        return position if self.source.replayable else replace(position, skip=0)

    def _last_position(self) -> SourcePosition:
        """Return the position at the end; an instance that was stopped has not read everything."""
        stopped = self._stop.is_set() or self._drained if self.spool is None else not self.spool.ended
        return self._position() if stopped else SourcePosition(ended=True)

    def _note_reached(self, checkpoint: int, source: ExecutorId, position: SourcePosition) -> None:
        assert self._reached is not None, "checkpoints begin in jobs that take them"
        reached = functools.partial(self._reached, checkpoint, source, position)
        if self.spool is None:
            reached()
            return
        self.spool.reached(checkpoint, position.offset if isinstance(position.offset, int) else 0)
        # A restart could not read the rows before the barrier otherwise.
        self.spool.when_durable(reached)

    def _end(self) -> None:
        """Tell the next receivers that the last row is delivered."""
        self._finished(self.identity)
        self.barriers.end()

    def abort(self) -> None:
        """Wake the threads, so that they see that the job has ended."""
        self._stop.set()
        self._woken.set()
        self.barriers.wake()
        self._read_ahead.close()
        self.mailbox.abort()

    @property
    def rows(self) -> int:
        """Rows that have left, or are leaving."""
        return self._departures.rows

    def rows_per_second(self) -> float:
        """Return the recent rate at which rows leave; called for each report of the worker."""
        return self._departures.per_second(time.monotonic())

    def busy(self) -> float:
        """Return the recent share of time in which rows left and did not wait for credit; called for each report."""
        return max(0.0, self._departures.sending(time.time()) - self.exchange.backpressured(self.identity))

    def lag(self) -> float:
        """Return by how many seconds rows leave later than they were due, or had arrived at a source without a rate.

        A batch that cannot leave for lack of credit lags more and more; without rows to send there is no lag.
        """
        return self._departures.lag(time.time())

    def _run_reader(self) -> None:
        # A reader that waits until rows are due sends them itself, those of one tick together. If it lags, or waits for
        # rows that are due at the same tick, it reads ahead: the sending thread joins what it reads meanwhile.
        waits, read_ahead, pace = self.source.pushed or self.source.rate is not None, self._read_ahead, self._pace
        self._open_shortcut()
        for rows, due in self._paced():
            if not waits or time.time() - due >= SLICE_SECONDS:
                is_open = read_ahead.put(rows, due)
            elif pace.is_complete or not pace.is_small(rows):
                is_open = read_ahead.pass_through(rows, due, self._send)
            elif self._reading.reads.are_prompt:
                is_open = read_ahead.hold(rows, due)
            else:
                is_open = read_ahead.put(rows, due)
            if not is_open:
                return
        read_ahead.close()
        self._run_left()

    def _open_shortcut(self) -> None:
        """Let threads that receive rows send them, where nothing but the rows decides what leaves and when."""
        if isinstance(self.mailbox, Mailbox) and self.source.rate is None and self._reached is None:
            explained = self._reading.explained
            means = self._read_ahead, self._pass, self._cost, self._brief_work, explained, self.threads.guarded
            with explained():
                self.mailbox.shortcut = Shortcut.of(self.source, *means)

    def _pass(self, rows: pa.RecordBatch, due: float) -> bool:
        """Send rows in a thread that must not wait for credit; returns whether some lack it."""
        sent = self._send_now(rows, due)
        if sent.left:
            self._rest = sent
        else:
            self._finish(sent)
        return self._rest is not None

    def _send(self, rows: pa.RecordBatch, due: float) -> None:
        self._finish(self._send_now(rows, due))

    def _send_now(self, rows: pa.RecordBatch, due: float) -> Sent:
        """Send what has credit; `_finish` comes next, and one thread at a time calls either."""
        self.exchange.idle_watch.note()
        self._departures.begin(rows.num_rows, due, time.time())
        if self.clock is not None:
            self._emit_watermark(self.clock.begin())
        (nbytes, left), busy = TURNS.run(self._brief_work, rows.num_rows, lambda: self._emit(rows, due))
        self._cost.add(rows.num_rows, busy)
        self._size.took(rows.num_rows, busy)
        return Sent(rows, nbytes, left)

    def _finish(self, sent: Sent) -> None:
        """Send what lacks credit, and what comes behind the rows."""
        rows, nbytes, left = sent
        if left:
            self._run_left(waits=True)  # credit may depend on it
            nbytes += self.exchange.deliver(self.identity, left)
        self._size.emitted(rows.num_rows, nbytes)
        self._departures.end(time.time())
        if self.clock is not None:
            self._emit_watermark(self.clock.sent(rows, time.monotonic()))

    def _emit(self, rows: pa.RecordBatch, due: float) -> tuple[int, Sequence[Delivery]]:
        """Emit rows without waiting for credit; returns the bytes delivered, and the outputs that lack credit."""
        return self.exchange.deliver_now(self.identity, self.emitter.emit([rows], due))

    def _emit_watermark(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            self.exchange.emit_watermark(watermark)

    def _run(self) -> None:
        for rows, due in self._taken() if self.source.blocks else self._joined():
            # An empty batch has no parts, and barriers do not wait for other rows.
            self.barriers.send_due()
            for part in self._parts(rows):
                self.barriers.send_due()
                self._send(part, due)
                self._size.sent(part.num_rows, time.monotonic())
        self.mailbox.close()
        if self.threads.ended:
            raise Aborted
        if self.clock is not None:
            self._emit_watermark(self.clock.end())
        self._end()

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for start, count in self._size.parts(rows.num_rows, time.monotonic):
            yield rows if count == rows.num_rows else rows.slice(start, count)

    def _taken(self) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield what the reading thread has read; waiting batches are joined."""
        while (taken := self._read_ahead.take(self._joins())) is not None:
            rows, due = taken
            if rows is None:
                if rest := self._rest:
                    self._finish(rest)
                self._rest = None
                self.barriers.send_due()
                if not self._read_ahead.holds:
                    self._tell_quiet()
            else:
                yield rows, due

    def _joined(self) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield what a source has that does not block; batches are joined unless they are sent when they are due."""
        waiting: list[pa.RecordBatch] = []
        count, first_due = 0, 0.0
        for rows, due in self._paced():
            if waiting and count + rows.num_rows > self._joins():
                yield _concatenated(waiting), first_due
                waiting, count = [], 0
            first_due = first_due if waiting else due
            waiting.append(rows)
            count += rows.num_rows
            if self.source.rate is not None and time.time() - due < SLICE_SECONDS:
                yield _concatenated(waiting), first_due
                waiting, count = [], 0
            if self._stop.is_set():
                break
        if waiting:
            yield _concatenated(waiting), first_due

    def _tell_quiet(self) -> None:
        if self.clock is not None:
            self._emit_watermark(self.clock.quiet(time.monotonic()))

    def _wait(self, seconds: float) -> bool:
        """Wait until rows are due, and emit the watermarks and barriers that are due meanwhile.

        Returns
        -------
        bool
            Whether the source ends.
        """
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not self._stop.is_set():
            next_due = until if self.clock is None else min(self.clock.due(), until)
            if self._woken.wait(max(0.0, next_due - now)):
                self._woken.clear()
                self.barriers.send_due()
            elif next_due < until:
                self._tell_quiet()
        return self._stop.is_set()

    def _joins(self) -> int:
        """Return up to how many rows waiting batches are joined."""
        return min(self._size.joins(time.monotonic()), JOINED_ROWS)

    def _paced(self) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield batches, each with the time at which it was due; waits until it is due."""
        if self.source.rate is None:
            for rows in self._reading.rows():
                yield rows, self._arrival()
            return
        wait = self._wait_for_tick
        self._pace.started = time.time()
        for rows in self._read_pushed() if self.source.pushed else self._reading.rows():
            given = self._due_as_sent()
            for part, due in self._pace.ticks(rows, time.time, wait):
                try:
                    yield part, due if given is None else given
                finally:
                    if not self._read_ahead.holds:
                        self._run_left()
                if TICKS.is_due(now := time.monotonic()):
                    TICKS.note(now, time.process_time())

    def _wait_for_tick(self, seconds: float) -> bool:
        """Wait until rows are due; returns whether the source ends."""
        if self._pace.is_stretched:
            self.threads.last_sender.announce(time.time() + seconds)
        # Without a reading thread, this one also emits watermarks while it waits.
        ends = self._stop.wait(seconds) if self.source.blocks else self._wait(seconds)
        if ends:
            self._run_left()
        return ends

    def _run_left(self, waits: bool = False) -> None:
        """Run what sources that send at the same tick have left to the last one, or to one that `waits`."""
        if left := self.threads.last_sender.sent(waits):
            with DEFERRED:
                for act in left:
                    DEFERRED.run(act)

    def _arrival(self) -> float:
        """Return when the rows read last were due: when they arrived, unless their sender has said it."""
        if not isinstance(self.mailbox, Mailbox) or not self.source.pushed:
            return time.time()
        given = self._due_as_sent()
        return self.mailbox.arrived if given is None else given

    def _due_as_sent(self) -> float | None:
        """Return the due time that a sender gave for the rows read last; now if it is still to come."""
        given = self.mailbox.due if isinstance(self.mailbox, Mailbox) else None
        return None if given is None else min(given, time.time())

    def _read_pushed(self) -> Iterator[pa.RecordBatch]:
        """Yield pushed batches; time without any does not count as lag."""
        pushed = self._reading.rows()
        requested = time.time()
        for rows in pushed:
            self._pace.note_arrival(requested, time.time())
            yield rows
            requested = time.time()


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

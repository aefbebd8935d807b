"""The buffer of an instance of a source for Spark: rows are staged, committed by epoch, and read by the source."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dask_elastic.checkpoint.epoch_spool import END_OF_STREAM, EpochSpool
from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.handoff_calls import NextEpochs, TakeEpochs
from dask_elastic.runtime.protocol.job_spec import JobGeneration, JobSpec
from dask_elastic.runtime.transport.program_end import program_ends
from dask_elastic.runtime.worker.buffers.output_buffer import COPIED_BYTES
from dask_elastic.runtime.worker.buffers.spool_writer import SpoolWriter
from dask_elastic.runtime.worker.buffers.staging import Chunk, Room, Staging
from dask_elastic.runtime.worker.node_services import NodeServices
from dask_elastic.vocab.epoch import AttemptId, SpoolFile, StagedPart
from dask_elastic.vocab.errors import SourceError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.node")

T = TypeVar("T")

WAKE_SECONDS = 0.5
"""Seconds that an instance waits for the next epochs before it calls the scheduler again."""

_ENDED = "the source has ended: it takes no more rows"

Held = memoryview | Path


class EpochBuffer:
    """The mailbox of an instance of a source for Spark.

    Chunks are staged on the event loop, and read in the source's thread when the scheduler's ledger has committed them.

    Parameters
    ----------
    limit : int
        Bytes to keep in memory.
    directory : Path
        Holds the chunks that do not fit.
    ask : Ask
        Calls the scheduler from the source's thread.
    generation_id : JobGeneration
        The job.
    identity : ExecutorId
        The source and its instance.
    in_thread : callable
        Runs a blocking function in a thread.
    spool : EpochSpool or None
        Where rows are written before their commit, and read again after a restart; None for a source without.

    Attributes
    ----------
    peak, peak_spilled : int
        The most bytes that were in memory, and on disk, at one moment.
    """

    def __init__(
        self,
        limit: int,
        directory: Path,
        ask: Ask,
        generation_id: JobGeneration,
        identity: ExecutorId,
        in_thread: Callable[..., Awaitable[Any]],
        spool: EpochSpool | None = None,
    ):
        self._directory = directory
        self._ask = ask
        self._reader = (*generation_id, *identity)
        self._in_thread = in_thread
        self._spool = spool
        self._writers: dict[AttemptId, SpoolWriter] = {}
        self._staging: Staging[Held] = Staging(limit)
        self._schemas: dict[AttemptId, pa.Schema] = {}
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._closed = threading.Event()
        self._aborted = threading.Event()
        self.peak = 0
        self.peak_spilled = 0

    @classmethod
    def of(
        cls, node: NodeServices, spec: JobSpec, identity: ExecutorId, limit: int, spool: EpochSpool | None
    ) -> EpochBuffer:
        """Return the buffer of an instance of a source of a job."""
        return cls(limit, node.spill_directory, node.ask, spec.generation_id, identity, node.in_thread, spool)

    @property
    def memory(self) -> int:
        """Bytes staged in memory."""
        return self._staging.memory

    @property
    def spilled(self) -> int:
        """Bytes staged on disk."""
        return self._staging.spilled

    # staging, on the event loop

    def begin(self, attempt: AttemptId, schema: pa.Schema) -> None:
        """Begin to stage an attempt."""
        now = time.monotonic()
        # Nothing tells that a driver was killed. A commit that comes later still is refused, and Spark writes again.
        self._change(lambda: self._staging.drop_abandoned(now))
        with self._lock:
            self._staging.begin(attempt, now)
            self._schemas[attempt] = schema
            if self._spool is not None:
                self._writers[attempt] = SpoolWriter(self._spool, attempt, schema.serialize().to_pybytes())

    async def add(self, attempt: AttemptId, chunk: memoryview) -> None:
        """Stage a chunk; waits for room as long as the source reads and so makes some."""
        if (writer := self._writers.get(attempt)) is not None:
            await writer.add(chunk)
        while True:
            freed = asyncio.Event()
            with self._lock:
                room = Room.SPILL if self._aborted.is_set() else self._staging.room(chunk.nbytes)
                if room is Room.KEEP:
                    self._staging.add(attempt, chunk, chunk.nbytes)
                    self.peak = max(self.peak, self._staging.memory)
                    return
                if room is Room.WAIT:
                    self._waiting.append((asyncio.get_running_loop(), freed))
            if room is Room.SPILL:
                await self._spill(attempt, chunk)
                return
            await freed.wait()

    async def _spill(self, attempt: AttemptId, chunk: memoryview) -> None:
        if self._aborted.is_set():
            raise SourceError(_ENDED)
        path = self._directory / uuid.uuid4().hex
        try:
            await self._in_thread(_write, path, chunk)
            with self._lock:
                self._staging.add(attempt, path, chunk.nbytes, spilled=True)
                self.peak_spilled = max(self.peak_spilled, self._staging.spilled)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if self._aborted.is_set():
                # The folder was made again; other chunks that are being written there remove it after that.
                with suppress(OSError):
                    self._directory.rmdir()
                if isinstance(error, SourceError):
                    # The folder may have been removed before the file was made.
                    raise SourceError(_ENDED) from error
            raise

    async def finish(self, attempt: AttemptId) -> SpoolFile | None:
        """Note that all chunks of an attempt are staged; returns the file with them, which is durable."""
        writer = self._writers.get(attempt)
        file = None if writer is None else await writer.finish()
        with self._lock:
            self._staging.finish(attempt)
        return file

    def drop(self, attempt: AttemptId) -> None:
        """Forget an attempt."""
        self._change(lambda: self._staging.drop(attempt))

    def seal(self, query: str, epoch: int, chosen: Collection[AttemptId]) -> bytes | None:
        """Keep the attempts chosen for an epoch, drop the query's others; see `Staging.seal`.

        Chosen attempts that are spooled may have been staged elsewhere, before a restart.

        Returns
        -------
        bytes or None
            The rows of the chosen attempts as an Arrow IPC stream; None if it would be large, or some are not here.
        """

        def change() -> list[Held]:
            here = chosen if self._spool is None else self._staging.finished(chosen)
            return self._staging.seal(query, epoch, here)

        self._change(change)
        return self._small_copy(query, epoch, sorted(chosen))

    def _small_copy(self, query: str, epoch: int, chosen: Sequence[AttemptId]) -> bytes | None:
        found = [self._copied(attempt) for attempt in chosen]
        copies = [copy for copy in found if copy is not None]
        chunks = [chunk for _, held in copies for chunk in held]
        if not chunks or len(copies) < len(found) or any(chunk.spilled for chunk in chunks):
            return None
        schema = copies[0][0]
        if sum(chunk.nbytes for chunk in chunks) > COPIED_BYTES or any(other != schema for other, _ in copies):
            return None
        return _stream(schema.with_metadata({"query": query, "epoch": str(epoch)}), chunks)

    def copy(self, part: StagedPart) -> bytes | pa.Buffer:
        """Return the rows of a committed attempt as an Arrow IPC stream; may block. They stay to be read by the source.

        Raises
        ------
        SourceError
            If the source has read them, and they are on no storage.
        CheckpointError
            If they cannot be read from storage.
        """
        if (staged := self._copied(part.attempt)) is not None:
            try:
                return _stream(*staged)
            except FileNotFoundError:
                pass  # the source has read a spilled chunk meanwhile
        if part.file is None or self._spool is None or self._spool.missing([part.file]):
            raise SourceError(f"{part.attempt}: the job has read its rows, and keeps no copy of them.")
        return self._spool.contents(part.file)

    def _copied(self, attempt: AttemptId) -> tuple[pa.Schema, tuple[Chunk[Held], ...]] | None:
        """Return the schema and the chunks of an attempt that the source has not begun to read."""
        with self._lock:
            chunks = self._staging.whole(attempt)
            return None if chunks is None else (self._schemas[attempt], chunks)

    def unstage(self, query: str, epoch: int, keep: Collection[AttemptId]) -> None:
        """Drop the attempts of an epoch that are not committed."""
        self._change(lambda: self._staging.abort(query, epoch, keep))

    def _change(self, change: Callable[[], list[Held]]) -> None:
        with self._lock:
            dropped = change()
            for attempt in self._schemas.keys() - self._staging.attempts:
                del self._schemas[attempt]
                if (writer := self._writers.pop(attempt, None)) is not None:
                    writer.drop()
            self._wake()
        if paths := [held for held in dropped if isinstance(held, Path)]:
            _away_from_loop(_delete, paths)

    def _wake(self) -> None:
        """Wake the writers that wait for room; the caller holds the lock."""
        for loop, freed in self._waiting:
            loop.call_soon_threadsafe(freed.set)
        self._waiting.clear()

    # reading, in the thread of the source

    def read(self, offset: object) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Yield the rows of committed epochs behind an offset, each batch with the offset after it.

        An offset is the number of the epoch up to which all rows were read, and how many rows of the next one.
        """
        after, skip = 0, 0
        # Without a spool, a restarted job has a new ledger.
        if isinstance(offset, tuple) and self._spool is not None:
            after, skip = offset
        self._ask(TakeEpochs(*self._reader, after, begins=True))
        while not self._aborted.is_set():
            # The answer has every epoch that was committed before the buffer was closed, so an empty one is the last.
            closed = self._closed.is_set()
            found = self._ask(NextEpochs(*self._reader, after, 0.0 if closed else WAKE_SECONDS))
            for number, parts in found.epochs:
                yield from self._read_epoch(number, parts, after, skip)
                if self._aborted.is_set():
                    return
                self._ask(TakeEpochs(*self._reader, number))
                after, skip = number, 0
            if (closed or found.closed) and not found.epochs:
                return

    def _read_epoch(
        self, number: int, parts: Sequence[StagedPart], before: int, skip: int
    ) -> Iterator[tuple[pa.RecordBatch, object]]:
        """Yield the rows of an epoch but its first ones; the epoch before has the number `before`."""
        rows = sum(part.rows for part in parts)
        count = 0
        for part in parts:
            for batch in self._read(part):
                unread = batch.slice(max(0, skip - count))
                count += batch.num_rows
                if unread.num_rows:
                    yield unread, (number, 0) if count == rows else (before, count)

    def _read(self, part: StagedPart) -> Iterator[pa.RecordBatch]:
        attempt, file = part.attempt, part.file
        with self._lock:
            schema = self._schemas.get(attempt)
            stored = file is not None and not self._staging.is_sealed(attempt)
        if stored:
            assert self._spool is not None, "only a spool has files"
            assert file is not None, "it is stored"
            yield from self._spool.read_rows(file)
            # What is staged may have been sealed meanwhile.
            self.drop(attempt)
            return
        while not self._aborted.is_set():
            with self._lock:
                chunk = self._staging.take(attempt)
                if chunk is None:
                    self._schemas.pop(attempt, None)
                    self._writers.pop(attempt, None)
                self._wake()
            if chunk is None:
                return
            assert schema is not None, "what is staged has a schema"
            yield pa.ipc.read_record_batch(pa.py_buffer(_content(chunk.held)), schema)

    # the end

    def offer(self, rows: pa.RecordBatch, timeout: float, due: float | None = None) -> bool:
        """Refuse rows of `Job.send`."""
        raise SourceError("this source takes epochs of Spark only: job.send has no place in them")

    def close(self) -> None:
        """End the source after the committed epochs; the scheduler has closed the ledger before."""
        self._closed.set()

    def abort(self) -> None:
        """Drop everything, because the job has ended here; spooled rows that are complete stay for another start."""
        self._closed.set()
        self._aborted.set()
        self._change(self._staging.drop_all)
        _away_from_loop(functools.partial(shutil.rmtree, ignore_errors=True), self._directory)


def _stream(schema: pa.Schema, chunks: Sequence[Chunk[Held]]) -> bytes:
    held = (chunk.held.read_bytes() if isinstance(chunk.held, Path) else chunk.held for chunk in chunks)
    return b"".join([memoryview(schema.serialize()), *held, END_OF_STREAM])


def _write(path: Path, chunk: memoryview) -> None:
    """Write a chunk that does not fit in memory; the error names the folder, since the writer is another machine's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chunk)
    except OSError as error:
        raise SourceError(
            f"staged rows beyond memory cannot be written to {path.parent}: {error}. Make room there, let workers use "
            "another folder (local_directory), or allow the source more memory (staging=)."
        ) from error


def _away_from_loop(function: Callable[[T], None], argument: T) -> None:
    """Run something that may block: at once, or in another thread if this one runs an event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None or program_ends():
        function(argument)
    else:
        loop.run_in_executor(None, function, argument)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # the rest is deleted with the directory
            logger.warning("a file with staged rows stays: %s", error)


def _content(held: Held) -> bytes | memoryview:
    """Return a chunk's bytes; a file is deleted."""
    if not isinstance(held, Path):
        return held
    data = held.read_bytes()
    held.unlink()
    return data

"""Where another engine's rows wait at an instance of a source, from their first chunk until they are read."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dask_elastic.runtime.worker.buffers.staging import Room, Staging
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import SourceError

WAKE_SECONDS = 0.5
"""How long an instance waits to be woken before it looks into the ledger by itself."""

Held = memoryview | Path
Ask = Callable[..., Any]


class EpochBuffer:
    """The mailbox of an instance of a source to which rows are handed over.

    Chunks are staged on the event loop, and read in the source's thread once the ledger says that they are committed.

    Parameters
    ----------
    limit : int
        Bytes to keep in memory.
    directory : Path
        Where to put what does not fit.
    ask : callable
        Asks the scheduler's ledger from a thread: `ask("next_epochs", after=..., wait=...)`.
    in_thread : callable
        Runs something that may block away from the event loop.

    Attributes
    ----------
    peak, peak_spilled : int
        The most bytes that were in memory, and on disk, at a time.
    """

    def __init__(self, limit: int, directory: Path, ask: Ask, in_thread: Callable[..., Awaitable[Any]]):
        self._directory = directory
        self._ask = ask
        self._in_thread = in_thread
        self._staging: Staging[Held] = Staging(limit)
        self._schemas: dict[AttemptId, pa.Schema] = {}
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._closed = threading.Event()
        self._aborted = threading.Event()
        self.peak = 0
        self.peak_spilled = 0

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
        with self._lock:
            self._staging.begin(attempt)
            self._schemas[attempt] = schema

    async def add(self, attempt: AttemptId, chunk: memoryview) -> None:
        """Stage a chunk; waits while there is no room, and will be."""
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
            raise SourceError("the source has ended: it takes no more rows")
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / uuid.uuid4().hex
        await self._in_thread(path.write_bytes, chunk)
        try:
            with self._lock:
                self._staging.add(attempt, path, chunk.nbytes, spilled=True)
                self.peak_spilled = max(self.peak_spilled, self._staging.spilled)
        except BaseException:
            path.unlink()
            raise

    def finish(self, attempt: AttemptId) -> None:
        """Note that an attempt is staged as a whole."""
        with self._lock:
            self._staging.finish(attempt)

    def drop(self, attempt: AttemptId) -> None:
        """Forget an attempt."""
        self._change(lambda: self._staging.drop(attempt))

    def seal(self, query: str, epoch: int, chosen: Collection[AttemptId]) -> None:
        """Keep what was chosen for an epoch, drop the query's rest; see `Staging.seal`."""
        self._change(lambda: self._staging.seal(query, epoch, chosen))

    def unstage(self, query: str, epoch: int, keep: Collection[AttemptId]) -> None:
        """Drop what was staged for an epoch and is not committed."""
        self._change(lambda: self._staging.abort(query, epoch, keep))

    def _change(self, change: Callable[[], list[Held]]) -> None:
        with self._lock:
            dropped = change()
            for attempt in self._schemas.keys() - self._staging.attempts:
                del self._schemas[attempt]
            self._wake()
        for held in dropped:
            if isinstance(held, Path):
                held.unlink()

    def _wake(self) -> None:
        """Let those look again who wait for room; the lock is held."""
        for loop, freed in self._waiting:
            loop.call_soon_threadsafe(freed.set)
        self._waiting.clear()

    # reading, in the thread of the source

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        after = 0
        while not self._aborted.is_set():
            # What is committed when the end is asked for is in the answer, so an empty one is the last.
            closed = self._closed.is_set()
            epochs = self._ask("next_epochs", after=after, wait=0.0 if closed else WAKE_SECONDS)
            for number, parts in epochs:
                for part in parts:
                    yield from self._read(StagedPart.from_message(part).attempt)
                self._ask("take_epochs", through=number)
                after = number
            if closed and not epochs:
                return

    def _read(self, attempt: AttemptId) -> Iterator[pa.RecordBatch]:
        schema = self._schemas[attempt]
        while not self._aborted.is_set():
            with self._lock:
                chunk = self._staging.take(attempt)
                if chunk is None:
                    del self._schemas[attempt]
                self._wake()
            if chunk is None:
                return
            yield pa.ipc.read_record_batch(pa.py_buffer(_content(chunk.held)), schema)

    # the end

    def offer(self, rows: pa.RecordBatch, timeout: float) -> bool:
        """Refuse rows that a program sends."""
        raise SourceError("rows are handed over to this source by epochs: job.send has no place in them")

    def close(self) -> None:
        """End the source after what is committed; whoever calls has closed the ledger."""
        self._closed.set()

    def abort(self) -> None:
        """Drop everything: the job has ended."""
        self._closed.set()
        self._aborted.set()
        self._change(self._staging.drop_all)
        shutil.rmtree(self._directory, ignore_errors=True)


def _content(held: Held) -> bytes | memoryview:
    """Return a chunk's bytes; a file has served with that."""
    if not isinstance(held, Path):
        return held
    data = held.read_bytes()
    held.unlink()
    return data

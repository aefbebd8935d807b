"""Writes the rows of one staged attempt to the folder of the job's checkpoints, while they arrive."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.vocab.epoch import AttemptId, SpoolFile
from dask_elastic.vocab.errors import SourceError

WAITING_BYTES = 16 * 2**20
"""Bytes that may wait for the storage, and one chunk more; beyond, the writer in Spark waits."""


class SpoolWriter:
    """Writes one attempt in a thread of its own; chunks come from the event loop.

    Parameters
    ----------
    spool : EpochSpool
        Where to write.
    attempt : AttemptId
        The attempt.
    schema : bytes
        The schema of its rows, as an Arrow IPC message.
    """

    def __init__(self, spool: EpochSpool, attempt: AttemptId, schema: bytes):
        self._spool = spool
        self._attempt = attempt
        self._schema = schema
        self._written: Future[SpoolFile] = Future()
        self._changed = threading.Condition(threading.Lock())
        self._chunks: deque[memoryview] = deque()
        self._bytes = 0
        self._complete = self._dropped = False
        self._room: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        # A daemon, because a storage that hangs must not keep the worker from ending.
        threading.Thread(target=self._run, name="elastic-spool", daemon=True).start()

    # on the event loop

    async def add(self, chunk: memoryview) -> None:
        """Append a chunk; waits while too many wait for the storage.

        Raises
        ------
        CheckpointError, SourceError
            As `finish`.
        """
        room = asyncio.Event()
        with self._changed:
            if self._written.done():
                self._written.result()
            self._chunks.append(chunk)
            self._bytes += chunk.nbytes
            self._changed.notify()
            waits = self._bytes > WAITING_BYTES
            self._room = (asyncio.get_running_loop(), room) if waits else None
        if waits:
            await room.wait()

    async def finish(self) -> SpoolFile:
        """Return the file once all rows are durable.

        Raises
        ------
        CheckpointError
            If the storage fails.
        SourceError
            If the attempt was dropped meanwhile.
        """
        with self._changed:
            self._complete = True
            self._changed.notify()
        return await asyncio.wrap_future(self._written)

    def drop(self) -> None:
        """Give the attempt up, unless all of it is durable; called from any thread, does not wait.

        A complete file stays, because its epoch may be committed after a restart of the job. The sweep of its epoch,
        or the next run of the job, deletes it if it is not.
        """
        with self._changed:
            self._dropped = True
            self._changed.notify()

    # in the thread

    def _run(self) -> None:
        try:
            file = self._spool.write_rows(self._attempt, self._schema, self._taken())
        except Exception as error:  # an error of the storage goes to the writer in Spark
            self._end(self._lost() if self._dropped else error)
        else:
            with self._changed:
                self._written.set_result(file)

    def _lost(self) -> SourceError:
        """Return the error after which the writer sends the attempt again if the job restarts."""
        return SourceError(f"{self._attempt} was dropped: its source has ended, or its writer has left.")

    def _end(self, error: Exception) -> None:
        with self._changed:
            self._written.set_exception(error)
            self._chunks.clear()
            self._wake()

    def _taken(self) -> Iterator[memoryview]:
        while True:
            with self._changed:
                while not (self._chunks or self._complete or self._dropped):
                    self._changed.wait()
                if self._dropped:
                    raise self._lost()
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
            yield chunk
            with self._changed:
                self._bytes -= chunk.nbytes
                if self._bytes <= WAITING_BYTES:
                    self._wake()

    def _wake(self) -> None:
        """Wake the writer that waits for room; the caller holds the lock."""
        if self._room is not None:
            loop, room = self._room
            self._room = None
            loop.call_soon_threadsafe(room.set)

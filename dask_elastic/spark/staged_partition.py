"""Stages one partition of a micro-batch at the instance of a source, again if the job restarts meanwhile."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from dask_elastic.routing.row_digest import RowDigest
from dask_elastic.runtime.protocol.handoff_calls import BeginAttempt, HandoffPlaces, StagingPlaces
from dask_elastic.spark.staging_connection import AttemptSender, call_scheduler
from dask_elastic.spark.target import Target
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import BatchMismatch, HandoffError, SourceError, SourceReset

logger = logging.getLogger("dask_elastic.spark")

KEPT_BYTES = 64 * 2**20
"""Bytes of a partition that its task keeps in memory until they are durable; the rest goes to a temporary file."""

RETRY_SECONDS = 120.0
FIRST_WAIT = 0.1
LONGEST_WAIT = 2.0
"""For how long a partition is sent again until a job that is about to restart takes it, and the time between; it
doubles. The time of the restart itself is not counted."""

CONNECT_SECONDS = 2.0
"""For how long a worker is dialled each time. Dask's timeout would be spent on a worker that has died, although the job
has restarted long before."""

RETRIED = (HandoffError, SourceError)
FINAL = (BatchMismatch, SourceReset)


def stage(target: Target, attempt: AttemptId, places: StagingPlaces, batches: Iterable[pa.RecordBatch]) -> StagedPart:
    """Stage the rows of one partition at the instance of the source that will read them.

    If the source spools its epochs, a restart of the job is waited for, and the rows are sent again. Rows of an epoch
    that is committed already are not sent, and so wait for no room: their number and digest suffice for the commit.

    Parameters
    ----------
    target : Target
        The job.
    attempt : AttemptId
        The writing attempt.
    places : StagingPlaces
        The scheduler's answer to `HandoffPlaces`.
    batches : iterable of RecordBatch
        The rows.

    Returns
    -------
    StagedPart
        The staged attempt, for the commit.

    Raises
    ------
    SchemaMismatch
        If the rows do not have the source's schema.
    HandoffError
        If the job accepts no more rows.
    """
    partition = _Partition(target, attempt, places)
    try:
        for batch in batches:
            partition.add(batch)
        return partition.staged()
    finally:
        partition.close()


class _Partition:
    """The rows of a partition on their way to a worker."""

    def __init__(self, target: Target, attempt: AttemptId, places: StagingPlaces):
        self._target = target
        self._attempt = attempt
        self._name = attempt.attempt
        self._places = places
        self._kept = _KeptChunks() if places.spooled else None
        self._digest = RowDigest()
        self._schema: bytes | None = None
        self._by_name: list[int] = []
        self._sender: AttemptSender | None = None
        self._sends = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Send a batch, or begin to."""
        if self._schema is None:
            self._schema = batch.schema.serialize().to_pybytes()
            # The order of columns may change between two attempts; the source has one of its own.
            names = batch.schema.names
            self._by_name = sorted(range(len(names)), key=names.__getitem__)
        self._digest.add(batch.select(self._by_name))
        if self._places.known:
            return
        chunk = batch.serialize()
        try:
            if self._sender is None:
                self._begin()
            assert self._sender is not None, "it has begun"
            self._sender.put(chunk)
        except RETRIED as error:
            self._keep(chunk)
            self._send_again(error)
        else:
            self._keep(chunk)

    def _keep(self, chunk: pa.Buffer) -> None:
        if self._kept is not None:
            self._kept.append(chunk)

    def staged(self) -> StagedPart:
        """Return the staged attempt when all rows have been sent."""
        file = None
        while self._sender is not None:
            try:
                file = self._sender.end()
                self._sender = None
            except RETRIED as error:
                self._send_again(error)
        return StagedPart(self._attempt, self._instance, self._digest.rows, self._digest.value, file)

    def close(self) -> None:
        """Close the connection, which makes the worker drop an attempt that is not complete."""
        if self._sender is not None:
            self._sender.abort()
        if self._kept is not None:
            self._kept.close()

    @property
    def _instance(self) -> int:
        return self._attempt.partition % len(self._places.places)

    def _begin(self) -> None:
        assert self._schema is not None, "a batch has come"
        places, instance = self._places, self._instance
        seconds = None if self._kept is None else CONNECT_SECONDS
        self._sender = AttemptSender(self._target, places.places[instance], seconds)
        self._sender.begin(
            BeginAttempt(self._attempt, self._target.job, places.generation, places.source, instance, self._schema)
        )

    def _send_again(self, error: Exception) -> None:
        """Send all rows so far to where the source is now.

        Raises
        ------
        HandoffError
            The given error, if the source does not spool its epochs, or does not take them after all.
        ElasticError
            Why the job has ended.
        """
        if self._kept is None or isinstance(error, FINAL):
            raise error
        waited, wait = 0.0, FIRST_WAIT
        while True:
            logger.info("%s is sent again: %s", self._attempt, error)
            if self._sender is not None:
                self._sender.abort()
                self._sender = None
            # The job may not have noticed its loss yet; when it has, the scheduler's answer waits for the restart.
            time.sleep(wait)
            waited, wait = waited + wait, min(2 * wait, LONGEST_WAIT)
            places = call_scheduler(self._target, HandoffPlaces(self._target.job, self._places.source))
            if places.run != self._places.run:
                raise error
            began = time.monotonic()
            try:
                self._send_kept(places, self._kept)
            except RETRIED as failure:
                waited += time.monotonic() - began
                if isinstance(failure, FINAL) or waited > RETRY_SECONDS:
                    raise
                error = failure
            else:
                return

    def _send_kept(self, places: StagingPlaces, kept: _KeptChunks) -> None:
        self._places = places
        # A file of the attempt that failed may exist.
        self._sends += 1
        self._attempt = self._attempt._replace(attempt=f"{self._name}-{self._sends}")
        self._begin()
        assert self._sender is not None, "it has begun"
        for chunk in kept:
            self._sender.put(chunk)


class _KeptChunks:
    """The rows that a task has sent, until the worker has them on durable storage."""

    def __init__(self) -> None:
        self._memory: list[pa.Buffer] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []

    def append(self, chunk: pa.Buffer) -> None:
        """Keep a chunk."""
        if self._file is None and self._bytes + chunk.size <= KEPT_BYTES:
            self._memory.append(chunk)
            self._bytes += chunk.size
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="elastic-")  # noqa: SIM115  closed by `close`
        self._file.write(memoryview(chunk))
        self._sizes.append(chunk.size)

    def __iter__(self) -> Iterator[pa.Buffer]:
        yield from self._memory
        if self._file is not None:
            self._file.seek(0)
            for size in self._sizes:
                yield pa.py_buffer(self._file.read(size))

    def close(self) -> None:
        """Forget everything."""
        self._memory.clear()
        if self._file is not None:
            self._file.close()

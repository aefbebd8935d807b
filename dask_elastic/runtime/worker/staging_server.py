"""Connections of a node for other engines and for readers: writers stage rows here, readers take rows of queues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from distributed.comm.core import CommClosedError

from dask_elastic.runtime.protocol.calls import UNREADABLE, Handler, handlers_of
from dask_elastic.runtime.protocol.codec import Payload, decode
from dask_elastic.runtime.protocol.handoff_calls import BeginAttempt, Seal, StagedRows, Unstage
from dask_elastic.runtime.protocol.queue_calls import DropRows, HeldRows
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.vocab.arrow_arrays import no_rows
from dask_elastic.vocab.errors import HandoffError, UnknownOperator, VersionMismatch
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.node")


class StagingServer:
    """Serves the connections of writers, each of which stages one attempt after the other.

    A writer sends `BeginAttempt`, then chunks, then ``end``. The node replies to each message, to a chunk only when it
    has stored it: a writer that keeps few chunks without a reply waits while the node is full. A connection that breaks
    drops the unfinished attempt.

    Parameters
    ----------
    node : HostingNode
        The node.
    """

    def __init__(self, node: HostingNode):
        self.node = node

    def handlers(self) -> dict[str, Any]:
        """Return the handlers by operation."""
        answered: dict[str, Handler] = handlers_of(
            Seal.handled_by(self.seal),
            Unstage.handled_by(self.unstage),
            StagedRows.handled_by(self.staged_rows),
            HeldRows.handled_by(self.held_rows),
            DropRows.handled_by(self.drop_rows),
        )
        return {**answered, "elastic_stage": self.stage}

    async def stage(self, comm: Comm) -> str:
        """Stage what a writer sends, until it closes the connection."""
        try:
            while True:
                begin = await comm.read()
                await self._stage_one(comm, begin)
        except (CommClosedError, OSError):
            logger.debug("a writer at %s has left", comm.peer_address)
        finally:
            comm.abort()
        return "dont_reply"

    async def _stage_one(self, comm: Comm, message: Any) -> None:
        """Stage one attempt; its errors go to the writer and affect nothing else here."""
        buffer, attempt, finished = None, None, False
        try:
            begin = _begin_of(message)
            buffer, attempt = self._begin(begin), begin.attempt
            await comm.write({"taken": 0})
            while "chunk" in (message := await comm.read()):
                chunk = memoryview(message["chunk"])
                await buffer.add(attempt, chunk)
                await comm.write({"taken": chunk.nbytes})
            file = await buffer.finish(attempt)
            finished = True
            await comm.write({"staged": [] if file is None else [*file]})
        except (CommClosedError, OSError):
            raise
        except Exception as error:  # becomes the reply
            finished = False
            await comm.write({"error": dump_error(error)})
            raise CommClosedError("an attempt was refused") from error
        finally:
            if buffer is not None and attempt is not None and not finished:
                buffer.drop(attempt)

    def _begin(self, begin: BeginAttempt) -> EpochBuffer:
        thread = self._source(begin.job, begin.generation, begin.source, begin.instance)
        schema = pa.ipc.read_schema(pa.py_buffer(begin.schema))
        thread.source.accept(no_rows(schema))
        buffer = _epoch_buffer(thread)
        buffer.begin(begin.attempt, schema)
        return buffer

    async def seal(self, call: Seal) -> bytes | None:
        """Keep the attempts chosen for an epoch; fails when one of them is not staged here."""
        buffer = _epoch_buffer(self._source(call.job, call.generation, call.source, call.instance))
        copy: bytes | None = await self.node.in_thread(buffer.seal, call.query, call.epoch, call.chosen)
        return copy

    async def unstage(self, call: Unstage) -> None:
        """Drop all attempts of an epoch but some."""
        buffer = _epoch_buffer(self._source(call.job, call.generation, call.source, call.instance))
        await self.node.in_thread(buffer.unstage, call.query, call.epoch, call.keep)

    async def staged_rows(self, call: StagedRows) -> Payload:
        """Return a copy of the rows of a committed attempt."""
        buffer = _epoch_buffer(self._source(call.job, call.generation, call.source, call.instance))
        return memoryview(await self.node.in_reading_thread(buffer.copy, call.part))

    async def held_rows(self, call: HeldRows) -> Payload:
        """Return rows that a sink here holds for the reader of its queue."""
        return memoryview(self._job_part(call.job, call.generation).output_buffer.rows(call.item))

    async def drop_rows(self, call: DropRows) -> None:
        """Forget rows that a reader has taken."""
        self._job_part(call.job, call.generation).output_buffer.drop(call.items)

    def _job_part(self, job: str, generation: int) -> JobPart:
        """Return the part of a generation of a job, which may have ended."""
        job_part = self.node.job_parts.get(job)
        if job_part is None or job_part.spec.generation != generation:
            address = self.node.worker.address
            raise HandoffError(f"worker {address} no longer hosts generation {generation} of job {job!r}.")
        return job_part

    def _source(self, job: str, generation: int, source: str, instance: int) -> SourceThread:
        address = self.node.worker.address
        job_part = self.node.job_parts.get(job)
        if job_part is None or job_part.ended or job_part.spec.generation != generation:
            raise HandoffError(f"worker {address} does not run generation {generation} of job {job!r}.")
        thread = job_part.sources.get(ExecutorId(source, instance))
        if thread is None:
            raise UnknownOperator(f"worker {address} has no instance {instance} of a source {source!r} of job {job!r}")
        return thread


def _begin_of(message: Any) -> BeginAttempt:
    try:
        return decode(BeginAttempt, message["begin"])
    except UNREADABLE as error:
        raise VersionMismatch(f"the beginning of an attempt cannot be read: {error!r}. Install one version.") from error


def _epoch_buffer(thread: SourceThread) -> EpochBuffer:
    if not isinstance(thread.mailbox, EpochBuffer):
        raise UnknownOperator(f"source {thread.identity.component!r} takes no epochs; use sources.Spark.")
    return thread.mailbox

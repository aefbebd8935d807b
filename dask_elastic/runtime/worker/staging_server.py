"""The door of a node: writers of another engine bring rows through it, and who reads a queue takes some away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from distributed.comm.core import CommClosedError
from distributed.protocol import to_serialize

from dask_elastic.runtime.protocol.answers import Handler, answered
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.vocab.epoch import AttemptId
from dask_elastic.vocab.errors import HandoffError, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from distributed.comm import Comm

    from dask_elastic.runtime.worker.job_part import JobPart
    from dask_elastic.runtime.worker.node import NodeRuntime
    from dask_elastic.runtime.worker.source_thread import SourceThread

logger = logging.getLogger("dask_elastic.node")


class StagingServer:
    """Takes connections of writers; each brings one attempt after the other.

    A writer says `begin` with a schema, sends chunks, and says `end`. Each message is answered, a chunk only when it
    has a place: so a writer that keeps few chunks unanswered waits when the node is full. A connection that breaks
    takes the unfinished attempt with it.

    Parameters
    ----------
    runtime : NodeRuntime
        The node.
    """

    def __init__(self, runtime: NodeRuntime):
        self.runtime = runtime

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by the name of their operation."""
        made = {
            f"elastic_{command.__name__}": answered(command)
            for command in (self.seal, self.unstage, self.held_rows, self.drop_rows)
        }
        return {**made, "elastic_stage": self.stage}

    async def stage(self, comm: Comm) -> str:
        """Stage what a writer sends, until it leaves."""
        try:
            while True:
                begin = await comm.read()
                await self._stage_one(comm, begin)
        except (CommClosedError, OSError):
            logger.debug("a writer at %s has left", comm.peer_address)
        finally:
            comm.abort()
        return "dont_reply"

    async def _stage_one(self, comm: Comm, begin: dict[str, Any]) -> None:
        """Stage one attempt; what is wrong with it is the writer's to hear, and breaks nothing here."""
        intake, attempt, finished = None, AttemptId(*begin["attempt"]), False
        try:
            intake = self._begin(begin, attempt)
            await comm.write({"taken": 0})
            while "chunk" in (message := await comm.read()):
                chunk = memoryview(message["chunk"])
                await intake.add(attempt, chunk)
                await comm.write({"taken": chunk.nbytes})
            intake.finish(attempt)
            finished = True
            await comm.write({"staged": True})
        except (CommClosedError, OSError):
            raise
        except Exception as error:  # becomes the answer
            finished = False
            await comm.write({"error": dump_error(error)})
            raise CommClosedError("an attempt was refused") from error
        finally:
            if intake is not None and not finished:
                intake.drop(attempt)

    def _begin(self, begin: dict[str, Any], attempt: AttemptId) -> EpochBuffer:
        thread = self._source(begin["job"], begin["run"], begin["source"], begin["instance"])
        schema = pa.ipc.read_schema(pa.py_buffer(begin["schema"]))
        thread.source.accept(pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema))
        intake = _intake(thread)
        intake.begin(attempt, schema)
        return intake

    async def seal(
        self, job: str, run: int, source: str, instance: int, query: str, epoch: int, chosen: list[list[Any]]
    ) -> None:
        """Keep the attempts chosen for an epoch; fails when one is not here."""
        intake = _intake(self._source(job, run, source, instance))
        await self.runtime.in_thread(intake.seal, query, epoch, [AttemptId(*each) for each in chosen])

    async def unstage(
        self, job: str, run: int, source: str, instance: int, query: str, epoch: int, keep: list[list[Any]]
    ) -> None:
        """Drop the attempts of an epoch but some."""
        intake = _intake(self._source(job, run, source, instance))
        await self.runtime.in_thread(intake.unstage, query, epoch, [AttemptId(*each) for each in keep])

    async def held_rows(self, job: str, run: int, item: int) -> Any:
        """Return rows that a sink here holds for who reads its queue."""
        return to_serialize(memoryview(self._job_part(job, run).output_buffer.rows(item)))

    async def drop_rows(self, job: str, run: int, items: list[int]) -> None:
        """Forget rows that were read."""
        self._job_part(job, run).output_buffer.drop(items)

    def _job_part(self, job: str, run: int) -> JobPart:
        """Return the part of a run of a job, which may have ended."""
        job_part = self.runtime.job_parts.get(job)
        if job_part is None or job_part.spec.generation != run:
            raise HandoffError(f"worker {self.runtime.worker.address} does not know run {run} of job {job!r} any more.")
        return job_part

    def _source(self, job: str, run: int, source: str, instance: int) -> SourceThread:
        address = self.runtime.worker.address
        job_part = self.runtime.job_parts.get(job)
        if job_part is None or job_part.ended or job_part.spec.generation != run:
            raise HandoffError(f"worker {address} does not run job {job!r}, or not any more: it takes no rows for it.")
        thread = job_part.sources.get(ExecutorId(source, instance))
        if thread is None:
            raise UnknownOperator(f"worker {address} has no instance {instance} of a source {source!r} of job {job!r}")
        return thread


def _intake(thread: SourceThread) -> EpochBuffer:
    if not isinstance(thread.mailbox, EpochBuffer):
        raise UnknownOperator(f"source {thread.identity.component!r} takes no epochs; use sources.Spark.")
    return thread.mailbox

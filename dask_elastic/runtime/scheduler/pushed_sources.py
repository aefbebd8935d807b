"""Rows from a client to a pushed source, and what the instances of other sources have to agree on."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, cause_of
from dask_elastic.runtime.scheduler.checkpoints import first_of
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import ElasticError, JobEnded, NodeLost, UnknownJob, UnknownOperator

MEMORY_PARTS = 4
"""A batch has at most this part of a worker's memory: it is received, decoded, joined and processed there."""

NOTICE_SECONDS = 10.0
LOOK_SECONDS = 0.1
"""Seconds within which the loss that has ended a part is noticed here, and between two looks whether the job runs."""


class PushedSources:
    """Forwards rows to the workers of pushed sources, ends such sources, and has instances of others read one input.

    Parameters
    ----------
    workers : Workers
        The workers and their memory.
    max_frame : int
        Bytes of the largest message that workers accept.
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    epochs : EpochCommits
        The sources for Spark, which are closed here too.
    """

    def __init__(self, workers: Workers, max_frame: int, jobs: JobTable, calls: WorkerCalls, epochs: EpochCommits):
        self.workers = workers
        self.max_frame = max_frame
        self.jobs = jobs
        self.calls = calls
        self.epochs = epochs
        # By job, its newest generation, and what the first instance of each source has found.
        self._agreed: WeakKeyDictionary[JobRecord, tuple[int, dict[str, bytes]]] = WeakKeyDictionary()

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            job_calls.FindSource.handled_by(self.find),
            job_calls.Send.handled_by(self.send),
            job_calls.CloseSource.handled_by(self.close_source),
            job_calls.AgreeOnInput.handled_by(self.agree),
        ]

    async def agree(self, call: job_calls.AgreeOnInput) -> bytes:
        """Return what the first instance of a source has found in a generation of its job."""
        record = self.jobs.record(call.job)
        generation, found = self._agreed.get(record, (0, {}))
        if call.generation > generation:
            generation, found = self._agreed[record] = call.generation, {}
        # An instance of an earlier generation is about to end.
        return found.setdefault(call.source, call.found) if call.generation == generation else call.found

    async def find(self, call: job_calls.FindSource) -> job_calls.PushedSource:
        """Return the workers of a pushed source; raises once its job takes no more rows."""
        record = self.jobs.record(call.job)
        source = _source_of(record, call.source)
        _check_alive(record)
        summary = record.spec.summary(source)
        run = record.spec.run if summary.spooled and record.checkpoints is not None else ""
        if record.halted or record.status is Status.RESTARTING:
            return job_calls.PushedSource(source, record.spec.generation, (), run=run)
        addresses = tuple(record.nodes[node] for node in record.spec.homes[source])
        memory = [found for address in addresses if (found := self.workers.memory(address))]
        most_bytes = min([self.max_frame, *(found // MEMORY_PARTS for found in memory)])
        return job_calls.PushedSource(source, record.spec.generation, addresses, summary.sent_schema, most_bytes, run)

    async def send(self, call: job_calls.Send) -> bool:
        """Forward rows to a pushed source; returns False when it has no room."""
        record = self.jobs.record(call.job)
        _check_alive(record)
        address = _address_of(record, call.source, call.instance)
        part_call = part_calls.Send(
            *record.generation_id, call.source, call.instance, call.rows, call.due, call.sender, call.sequence
        )
        return await self.calls.one(address, part_call)

    async def close_source(self, call: job_calls.CloseSource) -> None:
        """End a pushed source after the rows that were sent."""
        record = self.jobs.record(call.job)
        source, instances = _source_of(record, call.source), [call.instance]
        if any(summary.name == source and summary.epochs for summary in record.spec.summaries):
            if await self.epochs.end(record, source):
                return
            instances = [*range(len(record.spec.homes[source]))]
        for instance in instances:
            await self._close(record, source, instance)

    async def _close(self, record: JobRecord, source: str, instance: int) -> None:
        """End an instance of a source; if the job restarts meanwhile, that of the next generation."""
        while True:
            # Until the next generation has started, workers say that the job has ended there.
            await self._started(record)
            generation = record.spec.generation
            address = _address_of(record, source, instance)
            try:
                await self.calls.one(address, part_calls.CloseSource(*record.generation_id, source, instance))
            except (ElasticError, Relayed) as error:
                if not _has_ended(error):
                    raise
                if not await self._restarted(record, generation):
                    # The worker only knows that its part has ended, the scheduler also how.
                    _check_alive(record)
                    raise
            else:
                return

    @staticmethod
    async def _restarted(record: JobRecord, generation: int) -> bool:
        """Wait for a restart that may not have begun yet; returns whether a next generation runs."""
        if record.checkpoints is None:
            return False
        if record.runs(generation):
            await first_of(record.over(), timeout=NOTICE_SECONDS)
        await PushedSources._started(record)
        return record.live and not record.runs(generation)

    @staticmethod
    async def _started(record: JobRecord) -> None:
        """Wait until a job that restarts runs or has ended."""
        while record.live and (record.halted or record.starting):
            await record.ended(LOOK_SECONDS)


def _has_ended(error: ElasticError | Relayed) -> bool:
    """Return whether an error says that the part of the job has ended on a worker."""
    try:
        cause = cause_of(error)
    except Exception:  # loading an object of user code may raise any exception
        return False
    return isinstance(cause, UnknownJob | NodeLost)


def _check_alive(record: JobRecord) -> None:
    if record.error is not None:
        raise Relayed(record.error)
    if not record.live:
        raise JobEnded(f"job {record.name!r} is {record.status.value}: it takes no more rows. Submit it again.")


def _source_of(record: JobRecord, source: str | None) -> str:
    """Return the name of a pushed source: the given one, or that of the only one.

    Raises
    ------
    UnknownOperator
        If there is none of the name, or several and the name is left out.
    """
    pushed = [s.name for s in record.spec.summaries if s.pushed]
    if source is not None and source not in pushed:
        raise UnknownOperator(f"job {record.name!r} has no pushed source {source!r}: choose from {pushed}")
    if not pushed:
        raise UnknownOperator(f"job {record.name!r} has no sources.Push: nothing can be sent to it")
    if source is None and len(pushed) > 1:
        raise UnknownOperator(f"job {record.name!r} has the pushed sources {pushed}: name one of them with source=")
    return source or pushed[0]


def _address_of(record: JobRecord, source: str, instance: int) -> str:
    return record.nodes[record.spec.homes[_source_of(record, source)][instance]]

"""Rows on their way from a client to a source that is fed by hand."""

from __future__ import annotations

from typing import Any

from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.errors import JobFailed, UnknownOperator


class PushedSources:
    """Passes rows on.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        The way to their nodes.
    epochs : EpochCommits
        What is handed over in epochs.
    """

    def __init__(self, jobs: JobTable, calls: WorkerCalls, epochs: EpochCommits):
        self.jobs = jobs
        self.calls = calls
        self.epochs = epochs

    async def send(self, job: str, source: str, instance: int, rows: Any) -> bool:
        """Pass rows on to a pushed source; False when it has no room at the moment."""
        record = self.jobs.record(job)
        _check_alive(record)
        run = {"job": job, "generation": record.spec.generation}
        taken: bool = await self.calls.one(
            _node_of(record, source, instance), "send", **run, source=source, instance=instance, rows=rows
        )
        return taken

    async def close_source(self, job: str, source: str, instance: int) -> None:
        """End a pushed source after what was sent."""
        record = self.jobs.record(job)
        run = {"job": job, "generation": record.spec.generation}
        instances = [instance]
        if any(summary.name == source and summary.epochs for summary in record.spec.summaries):
            self.epochs.close(record, source)
            instances = [*range(len(record.spec.homes[source]))]
        for each in instances:
            address = _node_of(record, source, each)
            await self.calls.one(address, "close_source", **run, source=source, instance=each)


def _check_alive(record: JobRecord) -> None:
    if record.error is not None:
        raise Relayed(record.error)
    if not record.live:
        raise JobFailed(f"job {record.name!r} is {record.status.value}: it takes no more rows")


def _node_of(record: JobRecord, source: str, instance: int) -> str:
    pushed = [s.name for s in record.spec.summaries if s.pushed]
    if source not in pushed:
        raise UnknownOperator(f"job {record.name!r} has no pushed source {source!r}: choose from {pushed}")
    return record.nodes[record.spec.homes[source][instance]]

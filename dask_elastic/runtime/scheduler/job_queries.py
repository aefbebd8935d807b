"""What people ask about a job: where its parts are, what they hold, and what they put out."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_elastic.runtime.scheduler.core_changes import homes
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.errors import UnknownOperator


class JobQueries:
    """Passes questions on to the nodes of a job, and joins their answers.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        The way to their nodes.
    """

    def __init__(self, jobs: JobTable, calls: WorkerCalls):
        self.jobs = jobs
        self.calls = calls

    async def moves(self, job: str) -> list[dict[str, Any]]:
        """Return the newest finished shard moves of every executor."""
        return await self._joined(job, "moves")

    async def recoveries(self, job: str) -> list[dict[str, Any]]:
        """Return the newest losses of remote tasks of every executor."""
        return await self._joined(job, "recoveries")

    async def assignment(self, job: str) -> list[dict[str, Any]]:
        """Which task each shard of each executor belongs to, and where the tasks are."""
        return await self._joined(job, "assignment")

    async def state(self, job: str, operator: str, key: list[Any] | None = None) -> list[Any]:
        """Return the state of a stateful operator, a table per executor as Arrow IPC streams; or the row of one key."""
        record = self.jobs.record(job)
        run = {"job": job, "generation": record.spec.generation}
        calls = (
            self.calls.one(address, "state", **run, operator=operator, executor=index, key=key)
            for index, address in homes(record, operator, None)
        )
        return [part for parts in await asyncio.gather(*calls) for part in parts]

    async def collect(self, job: str, operator: str) -> list[Any]:
        """Return what a sink keeps for the client, a table per node as Arrow IPC streams."""
        sinks = [s.name for s in self.jobs.record(job).spec.summaries if s.kind == "sink"]
        if operator not in sinks:
            raise UnknownOperator(f"job {job!r} has no sink {operator!r}: choose from {sinks}")
        return await self._joined(job, "collect", operator=operator)

    async def dead_letters(self, job: str, operator: str) -> list[Any]:
        """Return the rows that an operator's code could not digest, a table per node as Arrow IPC streams."""
        known = [name for s in self.jobs.record(job).spec.summaries for name in s.operators]
        if operator not in known:
            raise UnknownOperator(f"job {job!r} has no operator {operator!r}: choose from {known}")
        return await self._joined(job, "dead_letters", operator=operator)

    async def _joined(self, job: str, operation: str, **arguments: Any) -> list[Any]:
        parts = await self.calls.all(self.jobs.record(job), operation, **arguments)
        return [one for part in parts for one in part]

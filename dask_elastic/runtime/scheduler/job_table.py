"""The jobs of a cluster."""

from __future__ import annotations

from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.vocab.errors import UnknownJob

RESTART_POLL = 0.1
"""Seconds between two looks whether a restarting job runs again."""


class JobTable(dict[str, JobRecord]):
    """The record of each job by its name, oldest first."""

    def record(self, name: str) -> JobRecord:
        """Return the record of a job.

        Raises
        ------
        UnknownJob
            If there is no job of that name.
        """
        record = self.get(name)
        if record is None:
            raise UnknownJob(f"no job {name!r}: the cluster knows {sorted(self) or 'none'}")
        return record

    async def settled(self, name: str) -> JobRecord:
        """Return the record of a job when it is not between two generations.

        Its restarts are bounded, and it fails if it cannot go on.

        Raises
        ------
        UnknownJob
            If there is no job of that name, or it is forgotten meanwhile.
        """
        while (record := self.record(name)).live and (record.halted or record.status is Status.RESTARTING):
            await record.ended(RESTART_POLL)
        return record

    @property
    def running(self) -> list[JobRecord]:
        """The jobs that have not ended."""
        return [record for record in self.values() if record.live]

    def held(self, besides: JobRecord | None = None) -> dict[str, int]:
        """Return the cores that running jobs hold on each worker, also for executors that move there.

        Parameters
        ----------
        besides : JobRecord, optional
            A job that does not count.
        """
        held: dict[str, int] = {}
        for record in self.running:
            if record is besides:
                continue
            for address, count in record.cores_by_address().items():
                held[address] = held.get(address, 0) + count
            if (moving := record.homes.moving) is not None and moving.cores:
                address = record.nodes[moving.target]
                held[address] = held.get(address, 0) + moving.cores
        return held

"""How far event time has come at the instances of a job on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart


def event_times(job_part: JobPart) -> list[list[Any]]:
    """Return of each instance here that has event time how far it has come, and how many rows were late at a source."""
    sources = [[*s.identity, s.clock.time, s.clock.late] for s in job_part.sources.values() if s.clock is not None]
    homes = [home.executor for home in job_part.homes.values()]
    executors = [[*e.identity, e.watermarks.now.time, 0] for e in homes if e.inputs.timed]
    sinks = [[*s.identity, s.inputs.time, 0] for s in job_part.sinks.values() if s.inputs.timed]
    return sources + executors + sinks

"""Watermarks of the instances of a job on a node."""

from __future__ import annotations

from dask_elastic.runtime.protocol.reports import InstanceTime
from dask_elastic.runtime.worker.job_part import JobPart


def event_times(job_part: JobPart) -> tuple[InstanceTime, ...]:
    """Return the watermark of each instance here that has event time, and the late rows of each source."""
    sources = [
        InstanceTime(*s.identity, s.clock.time, s.clock.late) for s in job_part.sources.values() if s.clock is not None
    ]
    homes = [home.executor for home in list(job_part.homes.values())]
    executors = [InstanceTime(*e.identity, e.watermarks.now.time, 0) for e in homes if e.inputs.timed]
    sinks = [InstanceTime(*s.identity, s.inputs.time, 0) for s in job_part.sinks.values() if s.inputs.timed]
    return (*sources, *executors, *sinks)

"""Whether the load of shards has jumped between two reports of a worker."""

from __future__ import annotations

from dask_elastic.runtime.protocol.reports import PartReport


def has_jumped(report: PartReport, before: PartReport | None) -> bool:
    """Return whether the load of some executor's shards has jumped since the report before."""
    return before is not None and _jumps(report) > _jumps(before)


def _jumps(report: PartReport) -> int:
    return sum(detail.jumps for detail in report.details)

"""The windows of a job's operator, and what is measured of them, as an explanation."""

from __future__ import annotations

import pickle

from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.errors import UnknownOperator
from dask_elastic.windows.explanation import WindowExplanation, WindowMeasures, explain_windows


def explained(described: JobDescription, operator: str) -> WindowExplanation:
    """Return how a windowed compute keeps its partials, and what that costs; see `Job.explain_windows`."""
    found = {one.name: one.windowing for one in described.components if one.windowing is not None}
    if operator not in found:
        names = ", ".join(map(repr, found)) or "none"
        raise UnknownOperator(f"job {described.name!r} has no windowed compute {operator!r}; it has: {names}")
    windowing: Windowing = pickle.loads(found[operator])
    parts = [part for part in described.executors if part.operator == operator]
    if not parts:
        return explain_windows(operator, windowing)
    rows, busy = sum(part.throughput for part in parts), sum(part.busy for part in parts)
    return explain_windows(operator, windowing, WindowMeasures(rows, busy, sum(part.state_bytes for part in parts)))

"""The windows of a job's operators, and what is measured of them, as explanations."""

from __future__ import annotations

import pickle

from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.topology.windowing import Windowing
from dask_elastic.windows.explanation import WindowExplanation, WindowMeasures, explain_windows


def window_sections(described: JobDescription, operator: str | None = None) -> dict[str, str]:
    """Return how windowed computes keep their partials, and what that costs, by title: of one, or of all."""
    return {
        f"windows of {name}": str(_explained(described, component.name, name, windowing))
        for component in described.components
        for name, windowing in component.windowings
        if operator in (None, name)
    }


def _explained(described: JobDescription, component: str, operator: str, pickled: bytes) -> WindowExplanation:
    windowing: Windowing = pickle.loads(pickled)
    parts = [part for part in described.executors if part.operator == component]
    if not parts:
        return explain_windows(operator, windowing)
    rows, busy = sum(part.throughput for part in parts), sum(part.busy for part in parts)
    return explain_windows(operator, windowing, WindowMeasures(rows, busy, sum(part.state_bytes for part in parts)))

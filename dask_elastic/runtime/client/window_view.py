"""The windows of a job's operators, and what is measured of them, as explanations."""

from __future__ import annotations

import pickle

import numpy as np

from dask_elastic.runtime.protocol.job_description import JobDescription, SharingStatus
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.topology.windowing import Windowing
from dask_elastic.windows.explanation import WindowExplanation, WindowMeasures, event_rows, explain_windows
from dask_elastic.windows.unit_costs import measured_costs
from dask_elastic.windows.window_plan import Partials


def window_sections(described: JobDescription, operator: str | None = None) -> dict[str, str]:
    """Return how windowed computes keep their partials, and what that costs, by title: of one, or of all."""
    changed = {status.operator: status for status in described.sharing}
    return {
        f"windows of {name}": "\n".join(
            [
                str(_explained(described, component.name, name, windowing, changed.get(name))),
                *_status(changed.get(name)),
            ]
        )
        for component in described.components
        for name, windowing in component.windowings
        if operator in (None, name)
    }


def _status(status: SharingStatus | None) -> list[str]:
    """Return the mode, and the last change, if a user or the cost model has changed anything."""
    if status is None:
        return []
    limit = "" if status.close_limit is None else f", if merging takes {status.close_limit:g} s at most"
    chosen = f"the cost model chooses{limit}" if status.mode == "auto" else f"set to {status.mode}"
    lines = [f"while it runs: {chosen}"]
    if status.changed is not None:
        since = "" if status.since is None else f" for event time from {np.datetime64(status.since, 'us')}"
        at_once = f"; {status.late} executors had passed this time and changed at once" if status.late else ""
        when = np.datetime64(int(status.changed), "s")
        lines.append(f"last change: to {status.partials}, at {when}{since}, because {status.reason}{at_once}")
    return lines


def _explained(
    described: JobDescription, component: str, operator: str, pickled: bytes, status: SharingStatus | None
) -> WindowExplanation:
    windowing: Windowing = pickle.loads(pickled)
    current: Partials | None = None
    if status is not None:
        current = "slices" if status.partials == "slices" else "instances"
    changes = operator == component and described.paradigm != RESOURCE
    if not changes and windowing.separate_if_fixed:
        current = "instances"
    parts = [part for part in described.executors if part.operator == component]
    if not parts:
        return explain_windows(operator, windowing, None, current, changes)
    rows, busy = sum(part.throughput for part in parts), sum(part.busy for part in parts)
    costs = measured_costs([part.window_measure for part in parts])
    measured = WindowMeasures(
        rows,
        busy,
        sum(part.state_bytes for part in parts),
        costs,
        event_rows(windowing, costs.rows, costs.instances),
    )
    return explain_windows(operator, windowing, measured, current, changes)

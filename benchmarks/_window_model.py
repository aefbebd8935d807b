"""What the cost model of windows predicts from the measures of one job, beside what another job takes."""

from __future__ import annotations

from collections.abc import Sequence

import dask_elastic as de
from dask_elastic.topology.windowing import Windowing
from dask_elastic.windows.unit_costs import PartMeasure, measured_costs
from dask_elastic.windows.window_plan import WindowPlan, plan_windows, window_load


def window_parts(job: de.Job, operator: str) -> list[PartMeasure]:
    """Return what the executors of a compute have measured."""
    return [part.window_measure for part in job._describe().executors if part.operator == operator]


def predicted(windowing: Windowing, parts: Sequence[PartMeasure], cpu: float, seconds: float) -> WindowPlan:
    """Return both plans by the costs that were measured with one of them.

    Parameters
    ----------
    windowing : Windowing
        The windows.
    parts : sequence of PartMeasure
        What the executors have measured.
    cpu : float
        The CPU seconds of the workers in all: what the windows have not taken is the same with either plan.
    seconds : float
        The length of the stream in event time.
    """
    costs = [part.costs for part in parts if part.costs is not None]
    rows = sum(one.rows for one in costs)
    adding = cpu - sum(one.merging + one.closing for one in costs)
    found = measured_costs([part._replace(row_seconds=adding / rows) for part in parts])
    assert found.keys is not None, "instances have closed"
    return plan_windows(windowing, window_load(rows / seconds, found.keys, found.units, found.other, found.corrected))

"""Elasticutor's Table 3: measures the time to assign cores to executors.

Notes
-----
Elasticutor, section 5.4, Table 3: 4.1, 5.2 and 5.7 ms on 8, 16 and 32 nodes, on another machine and with another
workload. Its throughputs are those of a cluster and do not concern planning. Algorithm 1 is timed as corrected by the
second erratum.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.papers.figures.figure import Figure
from dask_elastic.papers.workloads.core_demands import CoreDemand, core_demands
from dask_elastic.planning.cores import CoreAssignment, assign_cores
from dask_elastic.planning.placement.problem import Ints

PAPER = {8: 4.1, 16: 5.2, 32: 5.7}
"""Milliseconds by nodes, as in the paper; drawn beside the measured ones."""

_NODES, _MORE_NODES = (8, 16, 32), (64, 128)
_PERIODS, _FEW_PERIODS = 40, 8
_RUNS = 3


def scheduling_time(seed: int, quick: bool) -> pa.Table:
    """Measure the time to assign cores in successive periods, each starting from the previous assignment.

    Parameters
    ----------
    seed : int
        Seeds the demands.
    quick : bool
        Use a few periods on the paper's clusters.

    Returns
    -------
    pyarrow.Table
        One row per period: nodes, executors, period, milliseconds, share of the state that moves, and the threshold of
        data intensity that the assignment keeps, in bytes per second. The first period, which assigns free cores, is
        omitted.
    """
    rows = []
    for nodes in _NODES if quick else _NODES + _MORE_NODES:
        cores = None
        for period, demand in enumerate(core_demands(seed, nodes, 1 + (_FEW_PERIODS if quick else _PERIODS))):
            answer, seconds = _timed(demand.first() if cores is None else cores, demand)
            if cores is not None:
                row = {"nodes": nodes, "executors": len(demand.home), "period": period, "milliseconds": 1000 * seconds}
                moved = answer.cost / float(demand.state_bytes.sum())
                rows.append(row | {"moved_share": moved, "threshold": answer.threshold})
            cores = answer.assignment
    return pa.Table.from_pylist(rows)


def _timed(cores: Ints, demand: CoreDemand) -> tuple[CoreAssignment, float]:
    """Return an assignment and its time in seconds, the minimum of some runs to exclude other load on the machine."""
    given = (demand.wanted, demand.capacity, demand.state_bytes, demand.home, demand.intensity)
    best = math.inf
    for _ in range(_RUNS):
        start = time.perf_counter()
        answer = assign_cores(cores, *given)
        best = min(best, time.perf_counter() - start)
    return answer, best


def draw(table: pa.Table, axes: Any) -> None:
    """Draw median and range of the time over the number of nodes, and the paper's times."""
    nodes, spent = table["nodes"].to_numpy(), table["milliseconds"].to_numpy()
    sizes = np.unique(nodes)
    low, middle, high = (
        np.array([np.quantile(spent[nodes == size], part) for size in sizes]) for part in (0.1, 0.5, 0.9)
    )
    axes.errorbar(
        sizes, middle, yerr=[middle - low, high - middle], marker="o", capsize=4, label="here, median and 80 %"
    )
    axes.plot([*PAPER], [*PAPER.values()], marker="s", linestyle="--", color="0.5", label="paper")
    axes.set(xlabel="nodes of 8 cores", ylabel="milliseconds for an assignment", xscale="log", yscale="log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.legend()


FIGURES: tuple[Figure, ...] = (
    Figure(
        "elasticutor-table-3",
        "Elasticutor, Table 3",
        "Time to assign cores to executors after a shuffle of the keys",
        scheduling_time,
        draw,
    ),
)

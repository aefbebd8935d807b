"""Enorm's figures 14 and 15: the quality of fusion on random large jobs.

Notes
-----
Enorm, section 7.6. The paper's algorithm makes cycles on most of these jobs (ERRATA, Enorm 2), so each score is shown
twice: as printed, and without fusions that make a cycle.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.papers.figures.figure import Figure
from dask_elastic.papers.random_jobs import RandomJob, random_job
from dask_elastic.topology.fusion import communication, cycle, fuse

OPERATORS = (50, 100, 150)
JOBS = 500
QUICK_JOBS = 20

LABELS = {"baseline": "baseline", "attributes": "score = PA", "communication": "score = COMM"}
"""The scores as the paper's figures name them."""


def compute_components(seed: int, quick: bool) -> pa.Table:
    """Return the mean number of components after fusion of random jobs (figure 14)."""
    return _judged(seed, quick).drop_columns(["communication", "communication_error"])


def compute_communication(seed: int, quick: bool) -> pa.Table:
    """Return the mean percentage of tuples between components (figure 15)."""
    return _judged(seed, quick).drop_columns(["components", "components_error"])


@cache
def _judged(seed: int, quick: bool) -> pa.Table:
    """Fuse random jobs by every variant; one row for each size, score, and treatment of cycles."""
    rows = []
    for operators in OPERATORS:
        jobs = [random_job(operators, seed * JOBS + number) for number in range(QUICK_JOBS if quick else JOBS)]
        for score in LABELS:
            for cycles in ("forbidden", "as printed"):
                found = np.array([_judge(job, score, cycles == "as printed", seed) for job in jobs])
                error = found.std(axis=0, ddof=1) / np.sqrt(len(jobs))
                rows.append(
                    {
                        "operators": operators,
                        "score": score,
                        "cycles": cycles,
                        "jobs": len(jobs),
                        "components": found[:, 0].mean(),
                        "components_error": error[0],
                        "communication": found[:, 1].mean(),
                        "communication_error": error[1],
                        "cyclic_jobs": found[:, 2].mean(),
                    }
                )
    return pa.Table.from_pylist(rows)


def _judge(job: RandomJob, score: str, allow_cycles: bool, seed: int) -> tuple[int, float, bool]:
    """Return the number of components, the percentage of tuples between them, and whether they form a cycle."""
    components = fuse(job.attributes, job.rates, score, allow_cycles, seed)
    return len(components), 100 * communication(components, job.rates), cycle(components, job.rates) is not None


def draw(column: str, label: str, table: pa.Table, axes: Any) -> None:
    """Draw one line for each score, dashed where cycles are allowed as printed."""
    for color, (score, name) in enumerate(LABELS.items()):
        for cycles, style in (("forbidden", "-"), ("as printed", "--")):
            rows = table.filter((pc.field("score") == score) & (pc.field("cycles") == cycles))
            axes.errorbar(
                rows["operators"].to_pylist(),
                rows[column].to_pylist(),
                yerr=rows[f"{column}_error"].to_pylist(),
                label=name if cycles == "forbidden" else f"{name}, cycles as printed",
                linestyle=style,
                color=f"C{color}",
                marker="o",
                capsize=3,
            )
    axes.set_xticks(OPERATORS)
    axes.set_xlabel("operators")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend()


FIGURES: tuple[Figure, ...] = (
    Figure(
        "enorm-14",
        "Enorm, figure 14",
        "Average number of components of random jobs",
        compute_components,
        partial(draw, "components", "components"),
    ),
    Figure(
        "enorm-15",
        "Enorm, figure 15",
        "Average communication between components of random jobs",
        compute_communication,
        partial(draw, "communication", "inter-component communication (%)"),
    ),
)

"""The progress of both jobs side by side: one line per second."""

from __future__ import annotations

import math

from dask_elastic.cli.demo.course import Course
from dask_elastic.cli.demo.happening import cores_text
from dask_elastic.cli.demo.second import Second
from dask_elastic.cli.table import MISSING

LATENCIES = f"{'mean':>6} {'p99':>6} {'within':>6}"
CORES = 15
"""Width of a job's cores."""

WIDTH = len(LATENCIES) + 1 + CORES

HEAD = (
    f"{'':>4} {'target':>6} │ {'STATIC':<{WIDTH}} │ {'ELASTIC':<{WIDTH}} │\n"
    f"{'s':>4} {'ms':>6} │ {LATENCIES} {'cores':<{CORES}} │ "
    f"{LATENCIES} {'cores':<{CORES}} │ what happens now"
)


def line(at: float, static: Course, elastic: Course, shown: dict[str, Second | None], happens: str) -> str:
    """Format one second of both jobs.

    Parameters
    ----------
    at : float
        Seconds since the first row.
    static, elastic : Course
        The courses of the jobs.
    shown : dict
        The newest second of each job, by name; None after the job has ended.
    happens : str
        What happens now.
    """
    halves = " │ ".join(_half(course, shown.get(course.name)) for course in (static, elastic))
    return f"{at:>4.0f} {1000 * elastic.target:>6.0f} │ {halves} │ {happens}".rstrip()


def _half(course: Course, second: Second | None) -> str:
    share = MISSING if course.share is None else f"{course.share:.0%}"
    if second is None:
        return f"{'':>6} {'':>6} {share:>6} {'':<{CORES}}"
    cores = " ".join(map(cores_text, second.cores.values()))
    mean, p99 = (f"{1000 * seconds:,.0f}" if math.isfinite(seconds) else "∞" for seconds in (second.mean, second.p99))
    return f"{mean:>6} {p99:>6} {share:>6} {cores:<{CORES}}"

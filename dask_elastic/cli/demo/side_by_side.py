"""The progress of both jobs side by side: one line per second."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_elastic.cli.demo.course import Course
from dask_elastic.cli.demo.happening import cores_text
from dask_elastic.cli.demo.second import Second
from dask_elastic.cli.terminal.quantities import MISSING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Part = tuple[tuple[str, str], ...]
"""Texts and their styles, one after the other."""

TIMES = 11
"""Width of the second and the target."""

LATENCIES = 20
"""Width of a job's latencies and of its share of seconds within the target."""

CORES = 15
"""Width of a job's cores."""

HALF = LATENCIES + 1 + CORES

HAPPENS = 16
"""Least width of what happens; in a terminal that is too narrow for all, the cores continue on the next line."""

DIVIDERS = 3 * len(" │ ")
WIDE = TIMES + 2 * HALF + 2 * HAPPENS + DIVIDERS
NAMES = f"{'mean':>6} {'p99':>6} {'within':>6} cores"


@dataclass(frozen=True)
class Line:
    """Four parts with dividers between them: the times, the static job, the elastic job, and what happens.

    Parameters
    ----------
    parts : tuple of Part
        The parts.
    """

    parts: tuple[Part, Part, Part, Part]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.box import Box
        from rich.table import Table
        from rich.text import Text

        spare = options.max_width - TIMES - HAPPENS - DIVIDERS
        half = HALF if options.max_width >= WIDE else max(LATENCIES, min(HALF, spare // 2))
        table = Table(box=Box("\n".join(["  │ "] * 8)), show_edge=False, show_header=False, pad_edge=False)
        for width in (TIMES, half, half):
            table.add_column(width=width, overflow="fold")
        table.add_column(overflow="fold")
        table.add_row(*(Text.assemble(*part) for part in self.parts))
        yield table


def _heading(*texts: str) -> Line:
    times, static, elastic, happens = (((text, "bold"),) for text in texts)
    return Line((times, static, elastic, happens))


HEAD = (
    _heading(f"{'':>4} {'target':>6}", "STATIC", "ELASTIC", ""),
    _heading(f"{'s':>4} {'ms':>6}", NAMES, NAMES, "what happens now"),
)


def line(
    at: float,
    static: Course,
    elastic: Course,
    shown: Mapping[str, Second | None],
    happens: str,
    restarting: Collection[str] = (),
) -> Line:
    """Return the line of one second of both jobs.

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
    restarting : collection of str
        The jobs that have lost a worker and have not recovered yet.
    """
    static_half, elastic_half = (
        _half(course, shown.get(course.name), course.name in restarting) for course in (static, elastic)
    )
    times = ((f"{at:>4.0f} {1000 * elastic.target:>6.0f}", ""),)
    return Line((times, static_half, elastic_half, ((happens, "cyan"),)))


def _half(course: Course, second: Second | None, restarts: bool) -> Part:
    share = MISSING if course.share is None else f"{course.share:.0%}"
    if restarts:
        return (f"{'restarting':>13}", "red"), (f" {share:>6}", "")
    if second is None:
        return ((f"{'':>6} {'':>6} {share:>6}", ""),)
    cores = " ".join(map(cores_text, second.cores.values()))
    mean, p99 = (f"{1000 * seconds:,.0f}" if math.isfinite(seconds) else "∞" for seconds in (second.mean, second.p99))
    style = "green" if second.mean <= course.target else "red"
    return (f"{mean:>6}", style), (f" {p99:>6} {share:>6} {cores}", "")

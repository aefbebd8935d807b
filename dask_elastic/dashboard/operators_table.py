"""The table of a job's operators and their load."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING

from bokeh.models import Div

from dask_elastic.dashboard.colors import executor_colors
from dask_elastic.dashboard.key_skew import by_operator, key_skew
from dask_elastic.dashboard.quantities import UNKNOWN, count, duration, rate, size
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.vocab.compute_measure import ComputeMeasure
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory

EPOCH = datetime(1970, 1, 1)

HEAD = (
    "executors",
    "cores",
    "arriving",
    "processed",
    "load",
    "waiting",
    "mean time",
    "state",
    "moves",
    "hottest shard",
)


class OperatorsTable:
    """One row per operator, summed over its executors."""

    def __init__(self) -> None:
        self.root = Div(name="operators", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, job: JobHistory | None) -> None:
        """Show the operators' newest values."""
        text = "" if job is None else _table(job.latest(), job.bound)
        if text != self.root.text:
            self.root.text = text


@functools.lru_cache(maxsize=8)
def _table(job: JobSnapshot, bound: tuple[str, ...]) -> str:
    """Format the table; cached, because all viewers show the same one."""
    operators = by_operator(job.executors)
    colors = executor_colors([*operators])
    names = [*HEAD, *_event_time_head(job)]
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = []
    for (operator, executors), color in zip(operators.items(), colors, strict=True):
        rows.append(_row(operator, executors, color, operator in bound, _event_time_cells(job, executors)))
        rows += _compute_rows(job, executors)
    return f'<h2>Operators</h2><div class="scroll"><table><tr><th>operator</th>{head}</tr>{"".join(rows)}</table></div>'


def _row(
    operator: str, executors: Sequence[ExecutorSnapshot], color: str, bound: bool, of_event_time: Sequence[str]
) -> str:
    badges = '<span class="badge">GIL-bound</span>' if bound else ""
    if any(executor.pinned for executor in executors):
        badges += '<span class="badge plain">cores pinned</span>'
    load = utilisation(executors)
    cells = (
        f"{len(executors)}",
        count(sum(executor.total_cores for executor in executors)),
        rate(sum(executor.arrival_rate for executor in executors)),
        rate(sum(executor.throughput for executor in executors)),
        UNKNOWN if load is None else f"{load:.0%}",
        count(sum(executor.queue for executor in executors)),
        duration(mean_sojourn(executors)),
        _state(executors),
        count(sum(executor.moves for executor in executors)),
        _skew(executors),
        *of_event_time,
    )
    swatch = f'<span class="swatch" style="background: {color}"></span>'
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f"<tr><td>{swatch}{escape(operator)}{badges}</td>{numbers}</tr>"


def _compute_rows(job: JobSnapshot, executors: Sequence[ExecutorSnapshot]) -> list[str]:
    """Return a row for each of several computes that run in the tasks of one component."""
    computes: dict[str, list[ComputeMeasure]] = {}
    for executor in executors:
        for compute in executor.computes:
            computes.setdefault(compute.operator, []).append(compute)
    seconds = math.fsum(one.seconds for parts in computes.values() for one in parts)
    rows = []
    for operator, parts in computes.items():
        own = math.fsum(one.seconds for one in parts)
        share = f'<span title="share of processor time">{own / seconds:.0%}</span>' if seconds else UNKNOWN
        cells = [UNKNOWN] * 4 + [share, UNKNOWN, UNKNOWN, size(sum(one.state_bytes for one in parts)), UNKNOWN, UNKNOWN]
        counts = _window_cells([one.windows for one in parts], [one.open_windows for one in parts])
        cells += [counts.get(name, UNKNOWN) for name in _event_time_head(job)]
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f'<tr class="fused"><td>↳ {escape(operator)}</td>{numbers}</tr>')
    return rows


def _event_time_head(job: JobSnapshot) -> list[str]:
    """Return the columns of jobs with event time: the lag of watermarks, and rows that were late for windows."""
    with_windows = any(executor.windows is not None for executor in job.executors)
    of_time = ["watermark", "watermark lag"] if job.event_time is not None else []
    return of_time + (["open windows", "late rows"] if with_windows else [])


def _event_time_cells(job: JobSnapshot, executors: Sequence[ExecutorSnapshot]) -> list[str]:
    cells = dict.fromkeys(("watermark", "watermark lag", "open windows", "late rows"), UNKNOWN)
    times = [executor.event_time for executor in executors]
    if job.event_time is not None and times and None not in times:
        oldest = min(time for time in times if time is not None)
        cells["watermark"] = _instant(oldest)
        cells["watermark lag"] = duration(max(0, job.event_time - oldest) / 1e6)
    cells |= _window_cells([one.windows for one in executors], [one.open_windows for one in executors])
    return [cells[name] for name in _event_time_head(job)]


def _window_cells(windows: Sequence[RowCounts | None], open_windows: Sequence[int | None]) -> dict[str, str]:
    """Return the cells of late rows and open windows, as far as they are known."""
    cells = {}
    if counts := [one for one in windows if one is not None]:
        total = functools.reduce(RowCounts.plus, counts)
        each = ", ".join(f"{count(number)} {name.replace('_', ' ')}" for name, number in total._asdict().items())
        cells["late rows"] = f'<span title="{each}">{count(total.late)}</span>'
    if is_open := [one for one in open_windows if one is not None]:
        cells["open windows"] = count(sum(is_open))
    return cells


def _instant(microseconds: int) -> str:
    """Return an event time in UTC; one that no date can hold as unknown, such as the end of all input."""
    try:
        return (EPOCH + timedelta(microseconds=microseconds)).isoformat(sep=" ", timespec="seconds")
    except OverflowError:
        return UNKNOWN


def _state(executors: Sequence[ExecutorSnapshot]) -> str:
    on_disk = sum(executor.state_on_disk for executor in executors)
    total = size(sum(executor.state_bytes for executor in executors))
    return f"{total} ({size(on_disk)} on disk)" if on_disk else total


def _skew(executors: Sequence[ExecutorSnapshot]) -> str:
    skew = key_skew(executors)
    if skew is None:
        return UNKNOWN
    where = escape(f"shard {skew.shard} of {skew.executor}, which keeps a core {skew.load:.0%} busy")
    return f'<span title="{where}">{skew.share:.0%}, {count(skew.ratio)}× mean</span>'


def utilisation(executors: Sequence[ExecutorSnapshot]) -> float | None:
    """Return the arrival rate of an operator relative to the capacity of its cores; None before it was measured.

    Parameters
    ----------
    executors : sequence of ExecutorSnapshot
        The operator's executors.

    Returns
    -------
    float or None
        1.0 means that the cores are fully used.
    """
    known = [(one.arrival_rate / one.service_rate, one.total_cores) for one in executors if one.service_rate]
    cores = sum(count for _, count in known)
    return sum(busy for busy, _ in known) / cores if cores else None


def mean_sojourn(executors: Sequence[ExecutorSnapshot]) -> float | None:
    """Return the mean seconds that a tuple spends in an operator, weighted by the executors' arrival rates."""
    known = [(one.sojourn, one.arrival_rate) for one in executors if one.sojourn is not None]
    arrivals = math.fsum(rate for _, rate in known)
    return math.fsum(seconds * rate for seconds, rate in known) / arrivals if arrivals else None

"""``dask elastic replay``: what core planners would have decided on recorded snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable
from dask_elastic.cli.terminal.quantities import MISSING, clock, count, duration, size
from dask_elastic.control.replayed_jobs import ReplayedPeriod, ReplaySummary, replayed_periods, summaries
from dask_elastic.planning.registry import names
from dask_elastic.runtime.client.recordings import load_snapshots
from dask_elastic.runtime.config.control_options import control_options

if TYPE_CHECKING:
    from dask_elastic.cli.terminal.console import Shown

AS_SUBMITTED = "(as submitted)"
SUMMARY = (
    "planner", "job", "changes", "moved", "core seconds", "recorded", "predicted", "measured", "within target",
)  # fmt: skip
PERIODS = ("time", "job", "measured", "predicted", "recorded", "cores", "moved", "reason")


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--planner", "planners", type=click.Choice(names("cores")), multiple=True,
              help="Replay with this core planner; may be repeated. Each job's own if left out.")  # fmt: skip
@click.option("--job", "job", metavar="JOB", help="Show only this job.")
@click.option("--decisions", "with_decisions", is_flag=True, help="Show each period in which cores change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of periods.")
def replay(file: Path, planners: tuple[str, ...], job: str | None, with_decisions: bool, as_json: bool) -> None:
    """Decide again on the snapshots in FILE, and show predictions beside measurements.

    For example:
        dask elastic explain flight-delays --snapshots snapshots.jsonl
        dask elastic replay snapshots.jsonl --planner elasticutor --planner naive
        dask elastic replay snapshots.jsonl --decisions

    The load is that of the recording; the cores are those that the replayed planner gives, period by
    period. Measured is the latency with the recorded cores, predicted the one that the model expects
    with the replayed planner's cores; both are medians. The settings of the control loop are those
    of the configuration on this machine.
    """
    snapshots, settings = load_snapshots(file), control_options().settings
    found = {
        name or AS_SUBMITTED: [one for one in replayed_periods(snapshots, settings, name) if job in (None, one.job)]
        for name in dict.fromkeys(planners) or (None,)
    }
    if job is not None and not any(found.values()):
        known = ", ".join(sorted({one.name for snapshot in snapshots for one in snapshot.jobs})) or "none"
        raise click.UsageError(f"{file} has no job {job!r}: its jobs are {known}")
    if as_json:
        rows = [{"planner": name, **asdict(period)} for name, periods in found.items() for period in periods]
        click.echo(json_text(rows))
        return
    show(*_shown(found, with_decisions))


def _shown(found: dict[str, list[ReplayedPeriod]], with_decisions: bool) -> list[Shown]:
    rows = [_summary_row(name, one) for name, periods in found.items() for one in summaries(periods)]
    shown: list[Shown] = [ConsoleTable(SUMMARY, rows, left=2, optional=("within target", "core seconds"))]
    if with_decisions:
        for name, periods in found.items():
            changed = [_period_row(one) for one in periods if one.changes]
            shown += ["", (f"Planner {name}", "bold"), _table(changed) if changed else "It changes nothing."]
    return shown


def _table(rows: Sequence[Sequence[Cell]]) -> ConsoleTable:
    return ConsoleTable(PERIODS, rows, left={"time", "job", "reason"}, optional=("moved",))


def _summary_row(name: str, one: ReplaySummary) -> list[Cell]:
    within = MISSING if one.within_target is None else f"{one.within_target:.1%}"
    return [
        name,
        (one.job, "bold"),
        count(one.changes),
        size(one.moved_bytes),
        count(one.core_seconds),
        count(one.recorded_core_seconds),
        duration(one.predicted),
        duration(one.measured),
        within,
    ]


def _period_row(one: ReplayedPeriod) -> list[Cell]:
    return [
        clock(one.time),
        one.job,
        duration(one.measured),
        duration(one.predicted),
        count(one.recorded_cores),
        count(one.cores),
        size(one.moved_bytes),
        one.reason or "",
    ]

"""``dask elastic replay``: what planners of cores, homes and key groups would have decided on recorded snapshots."""

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
from dask_elastic.control.placement.choices import PLACEMENTS, SPREAD, kind_of_placement
from dask_elastic.control.replayed_jobs import ReplayedPeriod, ReplaySummary, replayed_periods, summaries
from dask_elastic.planning.registry import names
from dask_elastic.runtime.client.recordings import load_snapshots
from dask_elastic.runtime.config.control_options import control_options

if TYPE_CHECKING:
    from dask_elastic.cli.terminal.console import Shown
    from dask_elastic.control.placement.replayed_groups import GroupsSummary, ReplayedGroups
    from dask_elastic.control.placement.replayed_homes import HomesSummary, ReplayedHomes
    from dask_elastic.control.placement.settings import PlacementSettings
    from dask_elastic.runtime.config.control_options import ControlOptions
    from dask_elastic.vocab.snapshot import Snapshot

AS_SUBMITTED = "(as submitted)"
SUMMARY = (
    "planner", "job", "changes", "moved", "core seconds", "recorded", "predicted", "measured", "within target",
)  # fmt: skip
HOMES = (
    "placement", "job", "moves", "moved", "longest pause", "load distance", "recorded", "within workers", "recorded ",
)  # fmt: skip
GROUPS = (
    "placement", "job", "operator", "groups", "recorded", "moved", "recorded ", "longest pause", "measured",
    "load distance", "recorded  ", "within workers", "recorded   ", "predicted", "measured ",
)  # fmt: skip
SHOWN = 8
"""Number of key groups of a decision that are named; the others are counted."""

PERIODS = ("time", "job", "measured", "predicted", "recorded", "cores", "moved", "reason")


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--planner", "planners", type=click.Choice(names("cores")), multiple=True,
              help="Replay with this core planner; may be repeated. Each job's own if left out.")  # fmt: skip
@click.option("--placement", "placements", type=click.Choice([name for name in PLACEMENTS if name != SPREAD]),
              multiple=True,
              help="Replay homes and key groups with this placement instead of cores; may be repeated.")  # fmt: skip
@click.option("--job", "job", metavar="JOB", help="Show only this job.")
@click.option("--decisions", "with_decisions", is_flag=True, help="Show each period in which cores change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of periods.")
def replay(
    file: Path,
    planners: tuple[str, ...],
    placements: tuple[str, ...],
    job: str | None,
    with_decisions: bool,
    as_json: bool,
) -> None:
    """Decide again on the snapshots in FILE, and show predictions beside measurements.

    For example:
        dask elastic explain flight-delays --snapshots snapshots.jsonl
        dask elastic replay snapshots.jsonl --planner elasticutor --planner naive
        dask elastic replay snapshots.jsonl --decisions
        dask elastic replay snapshots.jsonl --placement albic --placement milp

    The load is that of the recording; the cores are those that the replayed planner gives, period by
    period. Measured is the latency with the recorded cores, predicted the one that the model expects
    with the replayed planner's cores; both are medians. The settings of the control loops are those
    of the configuration on this machine. With --placement: the moves of homes, their state and the
    longest pause that is expected; the load distance as a share of the mean load, and the traffic
    that stays within workers, each beside that of the recorded homes, as means over the periods.
    Of jobs with key groups: the groups that move, their state and the longest pause that is
    expected, each beside what moved in the recording and the pause that was measured there; and the
    latency that the model expects with the executors of the placement, beside the measured one.
    """
    if planners and placements:
        raise click.UsageError("--planner is about cores, --placement about homes and key groups: give one of them.")
    snapshots, options = load_snapshots(file), control_options()
    if placements:
        _replay_placements(file, snapshots, options, tuple(dict.fromkeys(placements)), job, with_decisions, as_json)
        return
    found = {
        name or AS_SUBMITTED: [
            one for one in replayed_periods(snapshots, options.settings, name) if job in (None, one.job)
        ]
        for name in dict.fromkeys(planners) or (None,)
    }
    _check_job(file, snapshots, job)
    if as_json:
        rows = [{"planner": name, **asdict(period)} for name, periods in found.items() for period in periods]
        click.echo(json_text(rows))
        return
    show(*_shown(found, with_decisions))


def _check_job(file: Path, snapshots: Sequence[Snapshot], job: str | None) -> None:
    known = sorted({one.name for snapshot in snapshots for one in snapshot.jobs})
    if job is not None and job not in known:
        raise click.UsageError(f"{file} has no job {job!r}: its jobs are {', '.join(known) or 'none'}")


def _replay_placements(
    file: Path,
    snapshots: Sequence[Snapshot],
    options: ControlOptions,
    placements: Sequence[str],
    job: str | None,
    with_decisions: bool,
    as_json: bool,
) -> None:
    # Planners of placements import SciPy, which takes long.
    from dask_elastic.control.placement.replayed_groups import groups_summaries, replayed_groups
    from dask_elastic.control.placement.replayed_homes import homes_summaries, replayed_homes

    _check_job(file, snapshots, job)
    own = options.placement
    homes = {
        name: [one for one in replayed_homes(snapshots, name, own) if job in (None, one.job)] for name in placements
    }
    # Planners of consecutive executors refuse key groups, as at submit.
    of_groups = [name for name in placements if kind_of_placement(name) == "placement"]
    groups = {
        name: [one for one in replayed_groups(snapshots, name, own, options.settings) if job in (None, one.job)]
        for name in of_groups
    }
    if as_json:
        periods = [asdict(one) for by_name in (homes, groups) for found in by_name.values() for one in found]
        click.echo(json_text(periods))
        return
    shown: list[Shown] = []
    if rows := [_homes_row(name, one) for name, periods in homes.items() for one in homes_summaries(periods)]:
        shown.append(ConsoleTable(HOMES, rows, left=2, optional=("longest pause", "moved")))
    if rows := [_groups_row(name, one) for name, periods in groups.items() for one in groups_summaries(periods)]:
        shown += [*([""] if shown else []), ConsoleTable(GROUPS, rows, left=3, optional=("within workers",))]
    if not shown:
        click.echo(_nothing(file, snapshots, own, placements, job))
        return
    if with_decisions:
        for name in placements:
            shown += _placement_decisions(name, homes[name], groups.get(name, []))
    show(*shown)


def _nothing(
    file: Path, snapshots: Sequence[Snapshot], settings: PlacementSettings, placements: Sequence[str], job: str | None
) -> str:
    """Return why a replay of placements shows nothing."""
    paradigms = {one.paradigm for snapshot in snapshots for one in snapshot.jobs if job in (None, one.name)}
    if paradigms == {"resource-centric"} and all(kind_of_placement(name) != "placement" for name in placements):
        listed = ", ".join(placements)
        return f"{listed}: nodes have consecutive executors, which key groups do not keep. Choose another placement."
    return (
        f"{file} is shorter than a period of {settings.period:g} s, or all its jobs are static, or its key "
        "groups are not measured."
    )


def _placement_decisions(name: str, homes: Sequence[ReplayedHomes], groups: Sequence[ReplayedGroups]) -> list[Shown]:
    moved: list[list[Cell]] = [
        [clock(one.time), one.job, count(one.moves), size(one.moved_bytes), one.reason] for one in homes if one.moves
    ]
    moved += [
        [clock(one.time), f"{one.job}: {one.operator}", count(one.moves), size(one.moved_bytes), _why(one)]
        for one in groups
        if one.moves
    ]
    table = ConsoleTable(("time", "job", "moves", "moved", "reason"), moved, left={"time", "job", "reason"})
    return ["", (f"Placement {name}", "bold"), table if moved else "It moves nothing."]


def _why(one: ReplayedGroups) -> str:
    from dask_elastic.control.placement.group_strategies import compared

    listed = ", ".join(f"{group}: {source} → {target}" for group, source, target in one.groups[:SHOWN])
    more = f" and {len(one.groups) - SHOWN} more" if len(one.groups) > SHOWN else ""
    return f"{one.reason} Groups {listed}{more}. {compared(one.costs, one.strategy)}"


def _groups_row(name: str, one: GroupsSummary) -> list[Cell]:
    return [
        name,
        (one.job, "bold"),
        one.operator,
        count(one.moves),
        count(one.recorded_moves),
        size(one.moved_bytes),
        size(one.recorded_bytes),
        duration(one.pause),
        MISSING if one.recorded_pause is None else duration(one.recorded_pause),
        f"{one.distance:.0%}",
        f"{one.recorded_distance:.0%}",
        f"{one.collocation:.0%}",
        f"{one.recorded_collocation:.0%}",
        duration(one.predicted),
        duration(one.measured),
    ]


def _homes_row(name: str, one: HomesSummary) -> list[Cell]:
    return [
        name,
        (one.job, "bold"),
        count(one.moves),
        size(one.moved_bytes),
        duration(one.pause),
        f"{one.distance:.0%}",
        f"{one.recorded_distance:.0%}",
        f"{one.collocation:.0%}",
        f"{one.recorded_collocation:.0%}",
    ]


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

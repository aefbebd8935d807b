"""``dask elastic plan``: planners on problems from files, and the papers' figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dask_elastic.cli.command import Command, help_text
from dask_elastic.cli.problem_file import load
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.terminal.console_table import ConsoleTable
from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.cli.terminal.quantities import count, duration
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import collocation, imbalance, load_distance
from dask_elastic.planning.registry import names, planner
from dask_elastic.vocab.errors import MissingExtra

HEAD = ("planner", "load distance", "imbalance", "moves", "moved bytes", "collocation", "proven", "milliseconds")
AS_IS = "(as it is)"

_HELP = """Plan placements offline, from files.

A problem is a JSON or Parquet file of groups with loads, the bins they are on, and what moving
them may cost. All planners are compared by the same measures.

For example:
    dask elastic plan compare problem.json
    dask elastic plan figures albic-2 --quick
"""


@click.group(name="plan", help=help_text(_HELP))
def plan() -> None:
    """Group the commands for planning."""


@plan.command(cls=Command)
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--planner", "chosen", type=click.Choice(names("placement")), multiple=True,
              help="Run this planner; may be repeated. All that are installed run if left out.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The planners' seed.")
@click.option("--option", "options", multiple=True, metavar="[PLANNER.]NAME=VALUE",
              help="An option for all chosen planners that have it, or for one; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(problem: Path, chosen: tuple[str, ...], seed: int, options: tuple[str, ...], as_json: bool) -> None:
    """Run one or all planners on a PROBLEM file and compare their plans.

    For example:
        dask elastic plan compare problem.json
        dask elastic plan compare problem.parquet --planner milp --option time_limit=1
        dask elastic plan compare problem.json --planner flux --planner albic --option flux.passes=1

    Load distance is the greatest distance of a bin's load from the mean, imbalance the greatest
    load over the mean, collocation the share of traffic that stays within bins. A plan is proven
    if no other has a lower value of what its planner minimises. VALUE is JSON, or text.
    """
    # What serves papers is imported only by the commands that use it.
    from dask_elastic.papers import experiment

    planners = _planners(tuple(dict.fromkeys(chosen)) or _installed(), options)
    loaded = load(problem)
    with progress_bar(f"Planning with {', '.join(planners)}"):
        found = experiment.compare(loaded, planners, seed, clock=time.perf_counter)
    if as_json:
        click.echo(json.dumps(found.to_pylist(), indent=2))
        return
    rows = [_as_it_is(loaded), *map(_row, found.to_pylist())]
    optional = ("imbalance", "proven", "collocation")
    show(_headline(loaded), ConsoleTable(HEAD, rows, optional=optional))


@plan.command(cls=Command)
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("figures"), show_default=True,
              help="The directory for the files.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seeds every random choice.")
@click.option("--quick", is_flag=True, help="Make small versions, in seconds instead of minutes.")
@click.option("--list", "listing", is_flag=True, help="Only list the figures.")
def figures(names: tuple[str, ...], out: Path, seed: int, quick: bool, listing: bool) -> None:
    """Reproduce figures of the papers: all of them, or those named.

    For example:
        dask elastic plan figures --list
        dask elastic plan figures --quick
        dask elastic plan figures albic-2 elasticutor-table-3 --out figures

    Each figure becomes two files of its name: the numbers in Parquet, the drawing in PNG. It needs
    the extra: pip install 'dask-elastic[papers]'.
    """
    from dask_elastic.papers.figures import catalogue

    known = catalogue.figures()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no figure is named {unknown[0]!r}: choose among {', '.join(known)}.")
    chosen = [known[name] for name in dict.fromkeys(names)] or [*known.values()]
    if listing:
        rows = [((f.name, "bold"), f.source, f.title) for f in chosen]
        show(ConsoleTable(("figure", "source", "what it shows"), rows, left=3))
        return
    for number, figure in enumerate(chosen):
        start = time.perf_counter()
        with progress_bar(f"Figure {figure.name}, {number + 1} of {len(chosen)}"):
            files = catalogue.write(figure, out, seed, quick)
        click.echo(f"{figure.name}: {' and '.join(map(str, files))}, in {duration(time.perf_counter() - start)}")


def _installed() -> tuple[str, ...]:
    """Return the placement planners whose solvers are installed; report the others on stderr."""
    found = []
    for name in names("placement"):
        try:
            planner(name, "placement")
        except MissingExtra as error:
            click.echo(f"left out: {error}", err=True)
        else:
            found.append(name)
    return tuple(found)


def _planners(chosen: Sequence[str], options: Iterable[str]) -> dict[str, PlacementPlanner]:
    """Return the planners with their options, by name."""
    given: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for option in options:
        left, equals, text = option.partition("=")
        of, _, name = left.rpartition(".")
        if not equals or not name:
            raise click.UsageError(f"--option {option!r} is no NAME=VALUE or PLANNER.NAME=VALUE.")
        if of and of not in given:
            raise click.UsageError(
                f"--option {option!r} is for planner {of!r}, which does not run: planners are {', '.join(given)}."
            )
        takers = [of] if of else [one for one in given if name in _known_options(one)]
        if not takers:
            asked = "; ".join(f"{one}: {', '.join(_known_options(one)) or 'none'}" for one in given)
            raise click.UsageError(f"no chosen planner has an option {name!r}. The options are {asked}.")
        for one in takers:
            given[one][name] = _value(text)
    return {name: _made(name, values) for name, values in given.items()}


def _made(name: str, options: dict[str, Any]) -> PlacementPlanner:
    try:
        return planner(name, "placement", **options)
    except TypeError as error:
        raise click.UsageError(f"planner {name!r} cannot take {options}: {error}") from error


def _known_options(name: str) -> tuple[str, ...]:
    made: Any = planner(name)
    return tuple(field.name for field in fields(made))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _headline(problem: PlacementProblem) -> str:
    parts = [f"{count(problem.groups)} groups on {count(problem.bins)} bins, mean load {problem.mean:.6g}"]
    if problem.draining.any():
        parts.append(f"{int(problem.draining.sum())} bins are draining")
    if problem.max_moves is not None:
        parts.append(f"at most {count(problem.max_moves)} moves")
    if problem.max_cost is not None:
        parts.append(f"at most {count(problem.max_cost)} bytes moved")
    return "; ".join(parts)


def _as_it_is(problem: PlacementProblem) -> list[str]:
    bin = Draft(problem).bin
    measures = (load_distance(problem, bin), imbalance(problem, bin), collocation(problem, bin))
    distance, ratio, together = measures
    return [AS_IS, f"{distance:.6g}", f"{ratio:.4f}", "0", "0", f"{together:.1%}", "", ""]


def _row(found: dict[str, Any]) -> list[str]:
    return [
        found["planner"],
        f"{found['load_distance']:.6g}",
        f"{found['imbalance']:.4f}",
        count(found["moves"]),
        count(found["moved_bytes"]),
        f"{found['collocation']:.1%}",
        "yes" if found["proven"] else "no",
        f"{1000 * found['seconds']:,.1f}",
    ]

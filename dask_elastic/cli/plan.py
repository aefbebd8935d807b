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
from dask_elastic.cli.table import count, duration, table
from dask_elastic.papers import experiment
from dask_elastic.planning.placement.problem import Draft, PlacementProblem
from dask_elastic.planning.placement.quality import collocation, imbalance, load_distance
from dask_elastic.planning.registry import Planner, names, planner

HEAD = ("planner", "load distance", "imbalance", "moves", "moved bytes", "collocation", "proven", "milliseconds")
AS_IS = "(as it is)"

_HELP = """Plan placements offline, from files.

A problem is a JSON or Parquet file of groups with loads, the bins they are on, and what moving
them may cost. Every planner is judged by the same measures.

For example:
    dask elastic plan compare problem.json
    dask elastic plan figures albic-2 --quick
"""


@click.group(name="plan", help=help_text(_HELP))
def plan() -> None:
    """Group the commands for planning."""


@plan.command(cls=Command)
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--planner", "chosen", type=click.Choice(names()), multiple=True,
              help="Ask this planner; may be repeated. All are asked if left out.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The planners' seed.")
@click.option("--option", "options", multiple=True, metavar="[PLANNER.]NAME=VALUE",
              help="An option of those asked planners that have it, or of one; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(problem: Path, chosen: tuple[str, ...], seed: int, options: tuple[str, ...], as_json: bool) -> None:
    """Run one or all planners on a PROBLEM file and compare their plans.

    For example:
        dask elastic plan compare problem.json
        dask elastic plan compare problem.parquet --planner milp --option time_limit=1
        dask elastic plan compare problem.json --planner flux --planner albic --option flux.passes=1

    Load distance is how far the bin furthest from the mean load is from it, imbalance the greatest
    load over the mean, collocation the part of the traffic that stays within bins. A plan is proven
    where no other is better for what its planner minimises. VALUE is JSON, or text.
    """
    planners = _planners(tuple(dict.fromkeys(chosen)) or names(), options)
    loaded = load(problem)
    found = experiment.compare(loaded, planners, seed, clock=time.perf_counter)
    if as_json:
        click.echo(json.dumps(found.to_pylist(), indent=2))
        return
    click.echo(_headline(loaded))
    click.echo(table(HEAD, [_as_it_is(loaded), *map(_row, found.to_pylist())]))


@plan.command(cls=Command)
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("figures"), show_default=True,
              help="The directory for the files.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="What chance starts from.")
@click.option("--quick", is_flag=True, help="Make small versions, in seconds instead of minutes.")
@click.option("--list", "listing", is_flag=True, help="Only say which figures there are.")
def figures(names: tuple[str, ...], out: Path, seed: int, quick: bool, listing: bool) -> None:
    """Compute figures of the papers again, all or those of some NAMES.

    For example:
        dask elastic plan figures --list
        dask elastic plan figures --quick
        dask elastic plan figures albic-2 elasticutor-table-3 --out figures

    Each becomes two files, named as the figure: its numbers in Parquet, its drawing in PNG.
    """
    # Matplotlib and all that figures need takes a while to import.
    from dask_elastic.papers.figures import catalogue

    known = catalogue.figures()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no figure is named {unknown[0]!r}: choose among {', '.join(known)}.")
    chosen = [known[name] for name in dict.fromkeys(names)] or [*known.values()]
    if listing:
        click.echo(table(("figure", "source", "what it shows"), [(f.name, f.source, f.title) for f in chosen], left=3))
        return
    for figure in chosen:
        start = time.perf_counter()
        files = catalogue.write(figure, out, seed, quick)
        click.echo(f"{figure.name}: {' and '.join(map(str, files))}, in {duration(time.perf_counter() - start)}")


def _planners(chosen: Sequence[str], options: Iterable[str]) -> dict[str, Planner]:
    """Return the planners with their options, by name."""
    given: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for option in options:
        left, equals, text = option.partition("=")
        of, _, name = left.rpartition(".")
        if not equals or not name:
            raise click.UsageError(f"--option {option!r} is no NAME=VALUE or PLANNER.NAME=VALUE.")
        if of and of not in given:
            raise click.UsageError(f"--option {option!r} is for planner {of!r}: asked are {', '.join(given)}.")
        takers = [of] if of else [one for one in given if name in _known_options(one)]
        if not takers:
            asked = "; ".join(f"{one}: {', '.join(_known_options(one)) or 'none'}" for one in given)
            raise click.UsageError(f"no planner that is asked has an option {name!r}. The options are {asked}.")
        for one in takers:
            given[one][name] = _value(text)
    return {name: _made(name, values) for name, values in given.items()}


def _made(name: str, options: dict[str, Any]) -> Planner:
    try:
        return planner(name, **options)
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

"""Runs a planner over many periods and records measures of each in a table.

Goal
    Compare any planners over any sequence of problems, generated or recorded, by the same measures.
Heuristic
    None. A planner's answer is the start of the next period; every answer passes the validator.
Not done
    The duration of moves: plans are carried out instantly.

Notes
-----
ALBIC, section 5, and ELB/CLB, section 5, run their planners in this way. Measures are taken before planning, with the
new loads on the old placement, and after it. No erratum concerns this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import (
    collocation,
    imbalance,
    load_distance,
    load_index,
    moved_bytes,
    variance,
)
from dask_elastic.vocab.errors import PlanningError

SCHEMA = pa.schema(
    [
        pa.field("planner", pa.string(), nullable=False),
        pa.field("period", pa.int64(), nullable=False),
        pa.field("planned", pa.bool_(), nullable=False),
        *(
            pa.field(name, pa.float64(), nullable=False)
            for name in (
                "load_distance_before",
                "load_distance",
                "variance_before",
                "variance",
                "imbalance",
                "collocation",
                "load_index",
                "to_drain",
            )
        ),
        pa.field("moves", pa.int64(), nullable=False),
        pa.field("moved_bytes", pa.float64(), nullable=False),
        pa.field("moved_share", pa.float64(), nullable=False),
        pa.field("proven", pa.bool_(), nullable=False),
        pa.field("seconds", pa.float64()),
    ]
)
"""The columns of an experiment's table, one row per period: the measures of `dask_elastic.planning.placement.quality`;
the load left on draining bins; the share of all state that moved; and how long planning took."""


class Experiment:
    """A planner and the record of its periods.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner.
    name : str, optional
        Its name in the table; its repr if left out.
    seed : int
        The seed of the first period; each later one has the next.
    every : int
        Plan in every n-th period; in the others only new groups are placed.
    clock : callable, optional
        Returns seconds, such as ``time.perf_counter``; without it the table has no times.

    Raises
    ------
    PlanningError
        If `every` is below 1.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> experiment = Experiment(planner("flux"), name="flux")
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2, max_moves=1)
    >>> placement = experiment.step(problem)
    >>> experiment.table().select(["load_distance_before", "load_distance", "moves"]).to_pylist()
    [{'load_distance_before': 4.0, 'load_distance': 0.0, 'moves': 1}]
    """

    def __init__(
        self,
        planner: PlacementPlanner,
        name: str | None = None,
        seed: int = 0,
        every: int = 1,
        clock: Callable[[], float] | None = None,
    ):
        if every < 1:
            raise PlanningError(f"every is {every!r}: give 1 period or more.")
        self._planner = planner
        self._name = repr(planner) if name is None else name
        self._seed = seed
        self._every = every
        self._clock = clock
        self._rows: list[dict[str, Any]] = []

    def step(self, problem: PlacementProblem) -> Placement:
        """Run one period.

        Parameters
        ----------
        problem : PlacementProblem
            The groups and their current bins.

        Returns
        -------
        Placement
            The placement after the period.

        Raises
        ------
        InvalidPlan
            If the planner breaks a rule of the problem.
        """
        period = len(self._rows)
        planned = (period + 1) % self._every == 0
        before = Draft(problem).bin
        seconds = None
        if planned:
            start = self._clock() if self._clock else 0.0
            placement = self._planner.plan(problem, seed=self._seed + period)
            seconds = self._clock() - start if self._clock else None
            validate(problem, placement)
        else:
            placement = problem.placement(before)
        self._rows.append(
            {"planner": self._name, "period": period, "planned": planned, "seconds": seconds}
            | _measures(problem, before, placement)
        )
        return placement

    def table(self) -> pa.Table:
        """Return the table of all periods so far, one row per period; see `SCHEMA`."""
        return pa.Table.from_pylist(self._rows, schema=SCHEMA)


def run(
    planner: PlacementPlanner,
    problems: Iterable[PlacementProblem],
    name: str | None = None,
    seed: int = 0,
    every: int = 1,
    clock: Callable[[], float] | None = None,
) -> pa.Table:
    """Run a planner over a sequence of problems, each of which starts from the previous answer.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner.
    problems : iterable of PlacementProblem
        One per period, all with the same groups. Only the first one's `current` counts.
    name, seed, every, clock
        See `Experiment`.

    Returns
    -------
    pyarrow.Table
        One row per period; see `SCHEMA`.

    Raises
    ------
    PlanningError
        If the number of groups changes, or a bin with groups is missing.
    InvalidPlan
        If the planner breaks a rule of a problem.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> from dask_elastic.papers.workloads.substreams import problems, zipf_counts
    >>> table = run(planner("eager"), problems(zipf_counts(seed=1, windows=3)))
    >>> [moves > 0 for moves in table["moves"].to_pylist()]
    [True, True, False]
    """
    experiment = Experiment(planner, name, seed, every, clock)
    bin: Ints | None = None
    for period, problem in enumerate(problems):
        bin = experiment.step(problem if bin is None else _continued(problem, bin, period)).bin
    return experiment.table()


def compare(
    problem: PlacementProblem,
    planners: Mapping[str, PlacementPlanner],
    seed: int = 0,
    clock: Callable[[], float] | None = None,
) -> pa.Table:
    """Run several planners on one problem.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    planners : mapping of str to PlacementPlanner
        The planners by their names in the table.
    seed : int
        The seed of each planner.
    clock : callable, optional
        Returns seconds.

    Returns
    -------
    pyarrow.Table
        One row per planner, in their order; see `SCHEMA`.

    Examples
    --------
    >>> from dask_elastic.planning.registry import planner
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2)
    >>> table = compare(problem, {name: planner(name) for name in ("flux", "storm")})
    >>> table.select(["planner", "load_distance"]).to_pylist()
    [{'planner': 'flux', 'load_distance': 0.0}, {'planner': 'storm', 'load_distance': 2.0}]
    """
    tables = [run(planner, [problem], name, seed, clock=clock) for name, planner in planners.items()]
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


def _measures(problem: PlacementProblem, before: Ints, placement: Placement) -> dict[str, Any]:
    bin = placement.bin
    moved, whole = moved_bytes(problem, bin), float(problem.state_bytes[problem.placed].sum())
    return {
        "load_distance_before": load_distance(problem, before),
        "load_distance": load_distance(problem, bin),
        "variance_before": variance(problem, before),
        "variance": variance(problem, bin),
        "imbalance": imbalance(problem, bin),
        "collocation": collocation(problem, bin),
        "load_index": load_index(problem, bin),
        "to_drain": problem.to_drain(bin),
        "moves": placement.moves,
        "moved_bytes": moved,
        "moved_share": moved / whole if whole > 0 else 0.0,
        "proven": placement.proven,
    }


def _continued(problem: PlacementProblem, bin: Ints, period: int) -> PlacementProblem:
    if len(bin) != problem.groups:
        raise PlanningError(f"period {period} has {problem.groups} groups, the one before {len(bin)}: give the same.")
    lost = np.flatnonzero(bin >= problem.bins)
    if lost.size:
        raise PlanningError(
            f"period {period} has {problem.bins} bins, but group {int(lost[0])} is on bin {int(bin[lost[0]])}: "
            "drain a bin before removing it."
        )
    return replace(problem, current=bin)

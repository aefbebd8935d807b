"""ALBIC's figures 2 to 5, 10 and 11: balance, scale-in and collocation of the solver and its baselines.

Notes
-----
ALBIC, sections 5.1 and 5.3, with the fourth erratum: Flux is shown both as a single pass and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.papers.experiment import Experiment, compare
from dask_elastic.papers.figures.figure import Figure
from dask_elastic.papers.workloads.node_loads import SIZES, Size, drifted, scale_in, varied_nodes
from dask_elastic.papers.workloads.operator_chains import operator_chain
from dask_elastic.planning.placement.albic import Albic
from dask_elastic.planning.placement.cola import Cola
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Placement, PlacementProblem

_BUDGETS, _FEW_BUDGETS = (10, 20, 30, 40), (10, 40)
_VARIES, _LITTLE_VARIES = (20.0, 40.0, 60.0, 80.0), (20.0, 60.0)
_SECONDS, _FEW_SECONDS = (1.0, 5.0), (0.1,)
_SMALL = (Size(10, 200, 10), Size(20, 400, 20), Size(30, 600, 30))


def balance(size: int, seed: int, quick: bool) -> pa.Table:
    """Compare the solver with Flux on one of the paper's three clusters.

    Parameters
    ----------
    size : int
        The index of the cluster, from 0.
    seed : int
        Seeds the loads.
    quick : bool
        Use a smaller cluster, fewer settings and less time for the solver.

    Returns
    -------
    pyarrow.Table
        One row per budget, variation and planner, with the columns of `dask_elastic.papers.experiment.SCHEMA`.
    """
    planners: dict[str, PlacementPlanner] = {"Flux, one pass": Flux(passes=1), "Flux, repeated": Flux()}
    for limit in _FEW_SECONDS if quick else _SECONDS:
        planners[f"MILP, {limit:g} s"] = Milp(time_limit=limit)
    tables = []
    for max_moves in _FEW_BUDGETS if quick else _BUDGETS:
        for varies in _LITTLE_VARIES if quick else _VARIES:
            problem = varied_nodes(seed, (_SMALL if quick else SIZES)[size], varies, max_moves)
            found = compare(problem, planners, seed, clock=time.perf_counter)
            tables.append(_labelled(found, max_moves=max_moves, varies=varies))
    return pa.concat_tables(tables)


def draw_balance(table: pa.Table, axes: Any) -> None:
    """Draw load distances over the variation: a colour per budget, a line style per planner."""
    strokes = dict(zip(_values(table, "planner"), (":", "--", "-.", "-"), strict=False))
    for number, max_moves in enumerate(_values(table, "max_moves")):
        for planner, stroke in strokes.items():
            x, y = _line(table, "varies", "load_distance", max_moves=max_moves, planner=planner)
            axes.plot(x, y, stroke, color=f"C{number}", marker=".")
        axes.plot([], [], color=f"C{number}", label=f"maxMigrations = {max_moves}")
    for planner, stroke in strokes.items():
        axes.plot([], [], stroke, color="0.3", label=planner)
    axes.set(xlabel="varies (points of load)", ylabel="load distance (points)", yscale="log")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


@dataclass(frozen=True)
class DrainFirst:
    """Non-integrated scale-in: empties draining nodes onto the least loaded others first, then balances.

    Parameters
    ----------
    balancer : PlacementPlanner
        The planner that balances once all draining nodes are empty.

    Notes
    -----
    ALBIC, section 5.1: named non-integrated in figure 5.
    """

    balancer: PlacementPlanner

    def objective(self, problem: PlacementProblem, bin: Any, seed: int = 0) -> tuple[float, ...]:
        """Return the objective: load left on draining nodes, then the balancer's objective."""
        return problem.to_drain(bin), *self.balancer.objective(problem, bin, seed)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement that moves groups off draining nodes, or one that balances if these are empty."""
        draft = Draft(problem)
        if not problem.draining[draft.bin].any():
            return self.balancer.plan(problem, seed)
        draft.drain()
        return problem.placement(draft.bin)


def scaling_in(seed: int, quick: bool) -> pa.Table:
    """Drain nodes while others are full, with integrated and non-integrated scale-in.

    Parameters
    ----------
    seed : int
        Seeds loads and nodes.
    quick : bool
        Use a smaller cluster.

    Returns
    -------
    pyarrow.Table
        One row per number of full nodes, planner and period, with the columns of an experiment.
    """
    size, leaving, full, max_moves, periods = (_SMALL[0], 2, (1, 2), 5, 24) if quick else (SIZES[2], 10, (1, 5), 20, 40)
    milp = Milp(time_limit=0.05 if quick else 1.0)
    planners: dict[str, PlacementPlanner] = {"integrated": milp, "non-integrated": DrainFirst(milp)}
    tables = []
    for overloaded in full:
        for name, planner in planners.items():
            problem = scale_in(seed, size, leaving, overloaded, max_moves)
            experiment = Experiment(planner, name, seed, clock=time.perf_counter)
            for _ in range(periods):
                problem = replace(problem, current=experiment.step(problem).bin)
            tables.append(_labelled(experiment.table(), overloaded=overloaded))
    return pa.concat_tables(tables)


def draw_scaling_in(table: pa.Table, axes: Any) -> None:
    """Draw load distances over the periods, and mark when the draining nodes are empty."""
    for number, overloaded in enumerate(_values(table, "overloaded")):
        for planner, stroke in (("integrated", "-"), ("non-integrated", "--")):
            of = {"overloaded": overloaded, "planner": planner}
            x, y = _line(table, "period", "load_distance", **of)
            axes.plot(x + 1, y, stroke, color=f"C{number}", label=f"{planner}, {overloaded}OL")
            _, left = _line(table, "period", "to_drain", **of)
            empty = np.flatnonzero(left == 0)
            if empty.size:
                axes.plot(x[empty[0]] + 1, y[empty[0]], "o", color=f"C{number}", fillstyle="none")
    axes.plot([], [], "o", color="0.3", fillstyle="none", label="draining nodes are empty")
    axes.set(xlabel="period", ylabel="load distance (points)", ylim=(0, None))
    axes.legend(fontsize=8)


FROM_EVEN = "ALBIC, from even"
"""ALBIC from equal counts of groups per node, as in section 5.1: it adds at most one pair per round."""


@dataclass(frozen=True)
class FromScratch:
    """Plans from scratch in every period and ignores the current placement.

    Parameters
    ----------
    planner : PlacementPlanner
        The planner.

    Notes
    -----
    ALBIC, section 5: COLA "is a static optimizer and does not consider runtime adaptations".
    """

    planner: PlacementPlanner

    def objective(self, problem: PlacementProblem, bin: Any, seed: int = 0) -> tuple[float, ...]:
        """Return the objective of the planner."""
        return self.planner.objective(problem, bin, seed)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement from scratch."""
        fresh = replace(problem, current=np.full(problem.groups, -1), max_moves=None, max_cost=None)
        return problem.placement(self.planner.plan(fresh, seed).bin)


def collocation(settings: Sequence[tuple[Size, float]], rounds: int, limit: float, seed: int) -> pa.Table:
    """Compare ALBIC, from COLA's placement and from an even one, with COLA over rounds of drifting loads.

    Parameters
    ----------
    settings : sequence of size and share
        The clusters, and the share of one-to-one groups.
    rounds : int
        The number of rounds.
    limit : float
        Seconds for each run of ALBIC's solver.
    seed : int
        Seeds loads, pairs and their drift.

    Returns
    -------
    pyarrow.Table
        One row per setting, planner and period, with the columns of an experiment.
    """
    cola = FromScratch(Cola())
    tables = []
    for size, one_to_one in settings:
        even = operator_chain(seed, size, one_to_one)
        chain, albic = replace(even, current=cola.plan(even, seed).bin), Albic(time_limit=limit)
        runs = (("ALBIC", albic, chain), ("COLA", cola, replace(chain, max_moves=None)), (FROM_EVEN, albic, even))
        for name, planner, problem in runs:
            experiment = Experiment(planner, name, seed + 1, clock=time.perf_counter)
            for period in range(rounds):
                problem = drifted(problem, seed + period)
                problem = replace(problem, current=experiment.step(problem).bin)
            tables.append(_labelled(experiment.table(), nodes=size.nodes, one_to_one=one_to_one))
    return pa.concat_tables(tables)


def by_share(seed: int, quick: bool) -> pa.Table:
    """Compare ALBIC with COLA over the share of one-to-one groups; see `collocation`."""
    if quick:
        return collocation([(_SMALL[0], share) for share in (0.25, 0.75)], 5, 0.2, seed)
    return collocation([(SIZES[1], share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)], 30, 0.5, seed)


def by_size(seed: int, quick: bool) -> pa.Table:
    """Compare ALBIC with COLA over the paper's three clusters, with half of the groups one to one."""
    if quick:
        return collocation([(size, 0.5) for size in _SMALL], 5, 0.2, seed)
    return collocation([(size, 0.5) for size in SIZES], 30, 0.5, seed)


def draw_collocation(key: str, label: str, table: pa.Table, axes: Any) -> None:
    """Draw the means over all rounds of load distance, and of collocation on a scale of its own."""
    other = axes.twinx()
    for number, planner in enumerate(("ALBIC", "COLA", FROM_EVEN)):
        for measure, where, stroke in (("load_distance", axes, "-o"), ("collocation", other, "--s")):
            points = [(one, _mean(table, measure, planner=planner, **{key: one})) for one in _values(table, key)]
            where.plot(
                *zip(*points, strict=True), stroke, color=f"C{number}", label=f"{planner}, {measure}".replace("_", " ")
            )
    axes.set(xlabel=label, ylabel="load distance (points)", ylim=(0, None))
    other.set(ylabel="collocation", ylim=(0, 1.05))
    (lines, names), (more, others) = axes.get_legend_handles_labels(), other.get_legend_handles_labels()
    axes.legend(lines + more, names + others, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _labelled(table: pa.Table, **labels: float) -> pa.Table:
    """Prepend constant columns to a table."""
    for name, value in reversed(labels.items()):
        table = table.add_column(0, name, pa.array([value] * len(table)))
    return table


def _values(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].unique().to_pylist()
    return values


def _where(table: pa.Table, labels: dict[str, Any]) -> Any:
    chosen = np.ones(len(table), dtype=np.bool_)
    for name, value in labels.items():
        chosen &= np.array(table[name].to_pylist()) == value
    return chosen


def _line(table: pa.Table, x: str, y: str, **labels: Any) -> tuple[Any, Any]:
    chosen = _where(table, labels)
    return table[x].to_numpy()[chosen], table[y].to_numpy()[chosen]


def _mean(table: pa.Table, name: str, **labels: Any) -> float:
    return float(table[name].to_numpy()[_where(table, labels)].mean())


def _sized(number: int) -> Figure:
    size = SIZES[number]
    compute: Callable[[int, bool], pa.Table] = partial(balance, number)
    title = f"Balance of {size.nodes} nodes with {size.groups} key groups"
    return Figure(f"albic-{number + 2}", f"ALBIC, figure {number + 2}", title, compute, draw_balance)


FIGURES: tuple[Figure, ...] = (
    *(_sized(number) for number in range(len(SIZES))),
    Figure(
        "albic-5", "ALBIC, figure 5", "Scale-in integrated in balance, and not integrated", scaling_in, draw_scaling_in
    ),
    Figure(
        "albic-10",
        "ALBIC, figure 10",
        "Balance and collocation by the greatest possible collocation",
        by_share,
        partial(draw_collocation, "one_to_one", "share of one-to-one groups"),
    ),
    Figure(
        "albic-11",
        "ALBIC, figure 11",
        "Balance and collocation by the size of the cluster",
        by_size,
        partial(draw_collocation, "nodes", "nodes"),
    ),
)

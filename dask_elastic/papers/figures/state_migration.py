"""State migration's figures 12, 13, 15 and 17: the cost of migrations and the time to plan them.

Notes
-----
State migration (Ding et al.), section 6. The number of nodes follows the arrivals per hour; transition matrices are
from the month before. Loads and sizes of tasks are those of the whole recording, so that projected costs stay valid
(ERRATA, State migration 4 and 6). The paper's "default τ = 1.2" is read as the factor 1 + τ (erratum 3), and Storm's
scheduler as equal counts of consecutive tasks (erratum 5). Figures 12 and 17 have 2 to 5 nodes where the paper has 8 to
16, since MTM-aware planning lists all partitionings. Figure 12b is figure 12 with 8 to 16 nodes and without the
MTM-aware strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.papers.figures.figure import Figure
from dask_elastic.papers.figures.short_texts import APPLICATIONS, short_texts
from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.node_trace import node_trace
from dask_elastic.planning.intervals.plan import assign
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import ProjectedCosts, projected_costs, single_step_aware
from dask_elastic.planning.placement.consistent_hash import ConsistentHash
from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem
from dask_elastic.planning.placement.redist import Redist

STRATEGIES = ("single-step", "MTM-aware", "consistent hashing", "Redist", "Storm")
"""The strategies of figure 12."""

DISCOUNT = 0.8
"""γ where it is not varied, as in the paper."""

_LOOSEST = 0.5
"""The loosest τ of figure 12: each further tenth has two to four times as many partitionings."""

_HOUR = np.timedelta64(1, "h")
_MONTH = np.timedelta64(30, "D")


@dataclass(frozen=True)
class Source:
    """The recording, and its division into intervals.

    Parameters
    ----------
    texts : pyarrow.Table, optional
        A recording with the columns ``arrival_ts`` and ``text``; generated if left out.
    interval : timedelta64
        Length of an interval of the node trace.
    history : timedelta64
        Length of the period before the first migration from which the transition matrix is computed.
    peak : float
        The quantile of arrivals per interval from which on the most nodes are needed.
    """

    texts: pa.Table | None = None
    interval: np.timedelta64 = _HOUR
    history: np.timedelta64 = _MONTH
    peak: float = 0.99

    def table(self, seed: int, quick: bool) -> pa.Table:
        """Return the texts."""
        return short_texts(seed, 6_000 if quick else 30_000) if self.texts is None else self.texts

    def story(self, texts: pa.Table, least: int, most: int, migrations: int) -> _Story:
        """Return migrations from the middle of the recording on, and the transition matrix before it."""
        trace = node_trace(texts["arrival_ts"].to_numpy(), self.interval, least, most, self.peak)
        moment = trace.times[len(trace) // 2]
        after = trace.between(moment, trace.times[-1]).migrations
        return _Story(after[: migrations + 1], trace.matrix_before(moment, self.history))


@dataclass(frozen=True)
class _Story:
    counts: Ints
    matrix: dict[int, dict[int, float]]


def compute_strategies(source: Source, seed: int, quick: bool) -> pa.Table:
    """Return the mean cost of a migration for each strategy and τ (figure 12)."""
    tasks, most, migrations = (16, 4, 40) if quick else (64, 5, 100)
    texts = source.table(seed, quick)
    story = source.story(texts, 2, most, migrations)
    rows = []
    for application, profile in APPLICATIONS.items():
        load, state = profile(texts, tasks)
        blind = _blind(load, state, story.counts, quick)
        for tau in _taus(load, range(2, most + 1), 3) if quick else _taus_to(_LOOSEST, load, range(2, most + 1)):
            costs = projected_costs(load, state, story.matrix, tau, DISCOUNT)
            aware = {"MTM-aware": _share(_aware(load, state, story.counts, tau, costs), state)}
            found = blind | aware | _balanced(load, state, story.counts, tau, quick)
            rows += _points(application, tau, story.counts, found)
    return pa.Table.from_pylist(rows)


def compute_many_nodes(source: Source, seed: int, quick: bool) -> pa.Table:
    """Return the mean costs with 8 to 16 nodes, without the MTM-aware strategy (figure 12b)."""
    texts = source.table(seed, quick)
    story = source.story(texts, 8, 16, 20 if quick else 100)
    rows = []
    for application, profile in APPLICATIONS.items():
        load, state = profile(texts, 64)
        blind = _blind(load, state, story.counts, quick)
        for tau in _taus(load, range(8, 17), 2 if quick else 6):
            found = blind | _balanced(load, state, story.counts, tau, quick)
            rows += _points(application, tau, story.counts, found)
    return pa.Table.from_pylist(rows)


def _blind(load: Floats, state: Floats, counts: Ints, quick: bool) -> dict[str, float]:
    """Return the costs of the strategies without τ."""
    return {
        "consistent hashing": _share(_hashed(load, state, counts, None, 3 if quick else 100), state),
        "Storm": _share(_equal_counts(state, counts), state),
    }


def _balanced(load: Floats, state: Floats, counts: Ints, tau: float, quick: bool) -> dict[str, float]:
    """Return the costs of the strategies with τ that do not plan ahead."""
    return {
        "single-step": _share(_single_steps(load, state, counts, tau), state),
        "Redist": _share(_hashed(load, state, counts, 1 + tau, 3 if quick else 20), state),
    }


def _points(application: str, tau: float, counts: Ints, found: dict[str, float]) -> list[dict[str, Any]]:
    """Return a row for each strategy, in the order of the paper."""
    about = {"application": application, "tau": tau, "migrations": len(counts) - 1}
    return [about | {"strategy": name, "cost_percent": found[name]} for name in STRATEGIES if name in found]


def compute_times(source: Source, seed: int, quick: bool) -> pa.Table:
    """Return the time to plan single steps for each τ (figure 13)."""
    texts = source.table(seed, quick)
    story = source.story(texts, 8, 16, 20 if quick else 100)
    rows = []
    for application, profile in APPLICATIONS.items():
        load, state = profile(texts, 64)
        for tau in _taus(load, range(8, 17), 3 if quick else 6):
            spent = _milliseconds(load, state, story.counts, tau)
            rows.append(
                {
                    "application": application,
                    "tau": tau,
                    "migrations": len(spent),
                    "median_ms": float(np.median(spent)),
                    "max_ms": max(spent),
                }
            )
    return pa.Table.from_pylist(rows)


def compute_tasks(source: Source, seed: int, quick: bool) -> pa.Table:
    """Return planning time and cost of single steps for each number of tasks (figure 15)."""
    texts = source.table(seed, quick)
    story = source.story(texts, 8, 16, 10 if quick else 100)
    sizes = (32, 64, 128) if quick else (32, 64, 128, 256, 512, 1024)
    profiles = {tasks: APPLICATIONS["word count"](texts, tasks) for tasks in sizes}
    tau = max(_taus(load, range(8, 17), 1)[0] for load, _ in profiles.values())
    rows = []
    for tasks, (load, state) in profiles.items():
        costs = _single_steps(load, state, story.counts, tau)
        rows.append(
            {
                "tasks": tasks,
                "tau": tau,
                "migrations": len(story.counts) - 1,
                "median_ms": float(np.median(_milliseconds(load, state, story.counts, tau))),
                "cost_percent": _share(costs, state),
            }
        )
    return pa.Table.from_pylist(rows)


def compute_discounts(source: Source, seed: int, quick: bool) -> pa.Table:
    """Return cost and projection time of MTM-aware migrations for each γ (figure 17)."""
    tasks, most, migrations = (16, 4, 40) if quick else (64, 5, 100)
    texts = source.table(seed, quick)
    story = source.story(texts, 2, most, migrations)
    load, state = APPLICATIONS["word count"](texts, tasks)
    rows = []
    for tau in _taus(load, range(2, most + 1), 5)[::2] if quick else _taus(load, range(2, most + 1), 3):
        single = _share(_single_steps(load, state, story.counts, tau), state)
        for discount in (0.0, 0.4, 0.8) if quick else (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95):
            began = time.perf_counter()
            costs = projected_costs(load, state, story.matrix, tau, discount)
            seconds = time.perf_counter() - began
            rows.append(
                {
                    "discount": discount,
                    "tau": tau,
                    "migrations": len(story.counts) - 1,
                    "partitionings": len(costs),
                    "seconds": seconds,
                    "cost_percent": _share(_aware(load, state, story.counts, tau, costs), state),
                    "single_step_percent": single,
                }
            )
    return pa.Table.from_pylist(rows)


def _taus(load: Floats, nodes: range, count: int) -> list[float]:
    """Return `count` values of τ by tenths, from the least that all numbers of nodes can meet."""
    first = math.ceil(10 * max(0.05, *(least_tau(load, number) for number in nodes)))
    return [(first + step) / 10 for step in range(count)]


def _taus_to(loosest: float, load: Floats, nodes: range) -> list[float]:
    """Return values of τ by tenths, from the least that all numbers of nodes can meet to the loosest."""
    first = _taus(load, nodes, 1)[0]
    return _taus(load, nodes, max(round(10 * (loosest - first)), 0) + 1)


def _share(costs: Iterator[float], state: Floats) -> float:
    """Return the mean cost of a migration in percent of all state."""
    return 100 * float(np.mean(list(costs))) / float(state.sum())


def _start(load: Floats, state: Floats, nodes: int, tau: float) -> Ints:
    """Return the first assignment of both optimal strategies."""
    return single_step(load, state, [[0, len(load)]], nodes, tau, allow_empty=False).intervals


def _single_steps(load: Floats, state: Floats, counts: Ints, tau: float) -> Iterator[float]:
    intervals = _start(load, state, int(counts[0]), tau)
    for nodes in counts[1:].tolist():
        plan = single_step(load, state, intervals, nodes, tau, allow_empty=False)
        intervals = plan.intervals
        yield plan.cost


def _aware(load: Floats, state: Floats, counts: Ints, tau: float, costs: ProjectedCosts) -> Iterator[float]:
    """Yield the costs of MTM-aware steps, and of single steps to node counts that the history lacks."""
    intervals = _start(load, state, int(counts[0]), tau)
    for nodes in counts[1:].tolist():
        if nodes in costs.node_counts:
            plan = single_step_aware(load, state, intervals, nodes, tau, costs)
        else:
            plan = single_step(load, state, intervals, nodes, tau, allow_empty=False)
        intervals = plan.intervals
        yield plan.cost


def _milliseconds(load: Floats, state: Floats, counts: Ints, tau: float) -> list[float]:
    """Return the planning time of each single step."""
    run = _single_steps(load, state, counts, tau)
    spent: list[float] = []
    while True:
        began = time.perf_counter()
        if next(run, None) is None:
            return spent[1:]
        spent.append((time.perf_counter() - began) * 1e3)


def _hashed(load: Floats, state: Floats, counts: Ints, threshold: float | None, seeds: int) -> Iterator[float]:
    """Yield the costs of consistent hashing, or of Redist if a threshold is given, for many rings."""
    planner = ConsistentHash() if threshold is None else Redist(threshold=threshold)
    bins = int(counts.max())
    for seed in range(seeds):
        current = np.full(len(load), -1)
        for step, nodes in enumerate(counts.tolist()):
            problem = PlacementProblem(load, current, bins, state, draining=np.arange(bins) >= nodes)
            placement = planner.plan(problem, seed)
            current = placement.bin
            if step:
                yield placement.cost


def _equal_counts(state: Floats, counts: Ints) -> Iterator[float]:
    """Yield the costs of equal counts of consecutive tasks, with the best matching (erratum 5)."""
    intervals = np.array([[0, len(state)]])
    for step, nodes in enumerate(counts.tolist()):
        plan = assign(state, intervals, np.arange(nodes + 1) * len(state) // nodes, nodes)
        intervals = plan.intervals
        if step:
            yield plan.cost


def draw_strategies(table: pa.Table, axes: Any) -> None:
    """Draw a line for each strategy and application."""
    for style, application in zip(("-", "--"), APPLICATIONS, strict=True):
        for color, strategy in enumerate(STRATEGIES):
            rows = table.filter((pc.field("strategy") == strategy) & (pc.field("application") == application))
            if len(rows):
                label = f"{strategy}, {application}"
                axes.plot(rows["tau"], rows["cost_percent"], style, color=f"C{color}", marker="o", label=label)
    axes.set_xlabel("load balancing threshold τ")
    axes.set_ylabel("state moved per migration (%)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small", ncols=2)


def draw_times(table: pa.Table, axes: Any) -> None:
    """Draw median and longest times for each application."""
    for color, application in enumerate(APPLICATIONS):
        rows = table.filter(pc.field("application") == application)
        axes.plot(rows["tau"], rows["median_ms"], color=f"C{color}", marker="o", label=f"{application}, median")
        axes.plot(rows["tau"], rows["max_ms"], ":", color=f"C{color}", marker=".", label=f"{application}, longest")
    axes.set_xlabel("load balancing threshold τ")
    axes.set_ylabel("time to plan a step (ms)")
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_tasks(table: pa.Table, axes: Any) -> None:
    """Draw times and costs over the number of tasks."""
    other = axes.twinx()
    lines = axes.plot(table["tasks"], table["median_ms"], "C0", marker="o", label="time to plan a step (ms)")
    lines += other.plot(table["tasks"], table["cost_percent"], "C1--", marker="s", label="state moved (%)")
    _finish(axes, other, "tasks", "time to plan a step (ms)", "state moved per migration (%)", lines)


def draw_discounts(table: pa.Table, axes: Any) -> None:
    """Draw costs and times over the discount factor, for each τ."""
    other = axes.twinx()
    lines = []
    for color, tau in enumerate(sorted(set(table["tau"].to_pylist()))):
        rows = table.filter(pc.field("tau") == tau)
        label = f"τ = {tau}"
        lines += axes.plot(rows["discount"], rows["cost_percent"], f"C{color}", marker="o", label=f"{label}, moved")
        lines += other.plot(rows["discount"], rows["seconds"], f"C{color}--", marker="s", label=f"{label}, time")
    _finish(axes, other, "discount factor γ", "state moved per migration (%)", "time to project costs (s)", lines)


def _finish(axes: Any, other: Any, bottom: str, left: str, right: str, lines: list[Any]) -> None:
    """Label the axes and the lines."""
    axes.set_xlabel(bottom)
    axes.set_ylabel(left)
    other.set_ylabel(right)
    axes.set_ylim(bottom=0)
    other.set_ylim(bottom=0)
    axes.legend(handles=lines, fontsize="small")


def figures(source: Source | None = None) -> tuple[Figure, ...]:
    """Return the figures of a recording, or of generated texts.

    Parameters
    ----------
    source : Source, optional
        The recording.

    Returns
    -------
    tuple of Figure
        Figures 12, 12 with more nodes, 13, 15 and 17.
    """
    given = source or Source()
    parts = (
        ("12", "Load balancing threshold and migration cost", compute_strategies, draw_strategies),
        ("12b", "Load balancing threshold and migration cost, 8 to 16 nodes", compute_many_nodes, draw_strategies),
        ("13", "Load balancing threshold and the time to plan a single step", compute_times, draw_times),
        ("15", "Number of tasks, the time to plan a single step, and its cost", compute_tasks, draw_tasks),
        ("17", "Discount factor, migration cost, and the time to project costs", compute_discounts, draw_discounts),
    )
    return tuple(
        Figure(
            f"state-migration-{number}",
            f"State migration, figure {number.replace('b', ' with more nodes')}",
            title,
            partial(compute, given),
            draw,
        )
        for number, title, compute, draw in parts
    )


FIGURES: tuple[Figure, ...] = figures()

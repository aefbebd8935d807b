"""The homes of a job's executors when it starts, chosen by the planner of its placement.

Goal
    Homes that suit the job before anything is measured, so that few have to move afterwards.
Method
    Rows flow as declared: a source with a rate sends that many rows, other sources as many as the mean, or all the
    same if none declares a rate. A stateful operator passes on what it gets. Its rows are shared evenly by its
    executors, and each upstream instance sends as much to each of them. Each row costs the same.
    Planners that read traffic place sources, too, so that these run where their rows go.
Not done
    Costs of operators, which are measured while the job runs.

Notes
-----
ALBIC, section 5.4 and its fifth erratum: COLA suits the placement at submit, ALBIC the running job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix

from dask_elastic.control.placement.choices import kind_of_placement, planner_name
from dask_elastic.control.placement.consecutive import balanced_lengths, matched
from dask_elastic.control.placement.planners import home_planner
from dask_elastic.planning.initial import InitialPlacement
from dask_elastic.planning.placement.problem import PlacementProblem

COLLOCATING = ("albic", "cola")
"""Planners that read traffic."""

SOURCE_LOAD = 0.25
"""Processor time that a source takes for a row, as a share of what a stateful operator takes."""


@dataclass(frozen=True)
class ComponentFlow:
    """Where the rows of a component come from.

    Parameters
    ----------
    name : str
        The component, a source or a stateful operator.
    inputs : tuple of str
        The components before it; none for a source.
    rate : float or None
        Rows per second that a source declares.
    """

    name: str
    inputs: tuple[str, ...] = ()
    rate: float | None = None


def initial_homes(
    placement: str,
    flows: Sequence[ComponentFlow],
    spread: InitialPlacement,
    free_slots: Sequence[int],
    seed: int = 0,
) -> dict[str, tuple[int, ...]]:
    """Return the homes of a job's executors and sources.

    Parameters
    ----------
    placement : str
        The name of the placement, not ``"spread"``.
    flows : sequence of ComponentFlow
        The sources and stateful operators.
    spread : InitialPlacement
        The placement by free slots. It decides how many instances there are.
    free_slots : sequence of int
        The free slots of each node.
    seed : int
        The planner's seed.

    Returns
    -------
    dict of str to tuple of int
        Node of each instance of each component. Without free slots they are those of `spread`.

    Examples
    --------
    >>> from dask_elastic.planning.initial import PlacementRequest, place
    >>> requests = [PlacementRequest("s", 1, False), PlacementRequest("c", 4, True)]
    >>> flows = [ComponentFlow("s"), ComponentFlow("c", ("s",))]
    >>> initial_homes("ssm", flows, place(requests, [2, 2]), [2, 2])["c"]
    (0, 0, 1, 1)
    """
    free = np.maximum(np.array(free_slots, dtype=np.float64), 0.0)
    instances = [(name, index) for name in spread.cores for index in range(len(spread.homes[name]))]
    if not free.any() or not instances:
        return spread.homes
    flow = _flow(flows)
    load = np.array([flow[name] / len(spread.homes[name]) for name, _ in instances])
    live = np.flatnonzero(free)
    if kind_of_placement(placement) == "placement":
        bin = _planned(placement, flows, spread, load, free, seed)
    else:
        lengths = balanced_lengths(load, free[live])
        bin = matched(lengths, np.full(len(load), -1), np.zeros(len(load)), live)
    homes = {name: list(places) for name, places in spread.homes.items()}
    sources = [(one.name, index) for one in flows if not one.inputs for index in range(len(homes[one.name]))]
    for (name, index), place in zip([*instances, *sources], bin.tolist(), strict=False):
        homes[name][index] = place
    return {name: tuple(places) for name, places in homes.items()}


def _planned(
    placement: str,
    flows: Sequence[ComponentFlow],
    spread: InitialPlacement,
    load: np.ndarray,
    free: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Return the bin of each executor, and for planners that read traffic then of each instance of a source."""
    sources = [one.name for one in flows if not one.inputs] if planner_name(placement) in COLLOCATING else []
    names = [*spread.cores, *sources]
    flow = _flow(flows)
    reading = [SOURCE_LOAD * flow[name] / len(spread.homes[name]) for name in sources for _ in spread.homes[name]]
    starts, total = {}, 0
    for name in names:
        starts[name] = total
        total += len(spread.homes[name])
    loads = np.array([*load, *reading])
    full = free <= 0
    problem = PlacementProblem(
        loads * (min(len(load), free.sum()) / loads.sum()),
        np.full(total, -1),
        len(free),
        capacity=np.where(full, 1.0, free),
        draining=full,
        traffic=_traffic([one for one in flows if one.name in starts], spread, starts, total),
        operator=[number for number, name in enumerate(names) for _ in spread.homes[name]],
    )
    return home_planner(placement).plan(problem, seed).bin


def _flow(flows: Sequence[ComponentFlow]) -> Mapping[str, float]:
    """Return the rows per second that each component passes on."""
    declared = [one.rate for one in flows if not one.inputs and one.rate]
    usual = sum(declared) / len(declared) if declared else 1.0
    found = {one.name: one.rate or usual for one in flows if not one.inputs}
    left = [one for one in flows if one.inputs]
    while left:
        ready = [one for one in left if all(name in found for name in one.inputs)]
        for one in ready or left:
            found[one.name] = sum(found.get(name, usual) for name in one.inputs)
        left = [one for one in left if one.name not in found]
    return found


def _traffic(
    flows: Sequence[ComponentFlow], spread: InitialPlacement, starts: Mapping[str, int], total: int
) -> coo_matrix:
    flow = _flow(flows)
    rows, columns, rates = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for one in flows:
        for name in filter(starts.__contains__, one.inputs):
            senders, receivers = len(spread.homes[name]), len(spread.homes[one.name])
            rows.append(starts[name] + np.repeat(np.arange(senders), receivers))
            columns.append(starts[one.name] + np.tile(np.arange(receivers), senders))
            rates.append(np.full(senders * receivers, flow[name] / (senders * receivers)))
    return coo_matrix((np.concatenate(rates), (np.concatenate(rows), np.concatenate(columns))), shape=(total, total))

"""Translation between snapshots and placement problems: executors are groups, nodes are bins.

Goal
    What a planner reads follows from a snapshot, and what it answers becomes moves of homes; nothing else translates.
Method
    The groups are the executors of the planned job, then its sources and the executors of other jobs, which stay where
    they are. The resources are processor time, memory and network. The load of an executor counts at its home, where
    its receiver and its state are, also where it has cores on other nodes; without a core at home, its processor time
    counts where its cores are.
Not done
    Sinks, which follow the executors that feed them.

Notes
-----
ALBIC, sections 3 and 4.3; its key groups are executors here, since in the executor-centric paradigm key groups keep
their executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.measured_loads import ExecutorLoad, JobLoads
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.new_home import SlotUse
from dask_elastic.planning.placement.problem import Floats, PlacementProblem
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import LABELLED, HomeMove
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

RESOURCES = ("processor time", "memory", "network")
"""The columns of the loads; memory is left out where that of a node is not known."""

_TOGETHER = 64
"""Executors whose traffic is read without a switch of threads in between."""


@dataclass(frozen=True, eq=False)
class PlacedExecutors:
    """The placement problem of one job, and what its groups and bins stand for.

    Parameters
    ----------
    job : JobKey
        The job.
    problem : PlacementProblem
        The problem.
    executors : tuple of ExecutorId
        The first groups: the executors of the job, in the order of the snapshot.
    snapshots : tuple of ExecutorSnapshot
        The same executors, as they were measured.
    nodes : tuple of int
        The node of each bin, as an index into the snapshot's nodes.
    addresses : tuple of str
        The address of each bin.
    slots : tuple of SlotUse
        The slots of each bin, and the cores that executors have there.
    resources : tuple of str
        The resource of each column of the loads.
    rows : array of float
        The rows per second of each group that keep its processor load busy.
    unit : float
        The cores that are one unit of processor load in the problem.
    """

    job: JobKey
    problem: PlacementProblem
    executors: tuple[ExecutorId, ...]
    snapshots: tuple[ExecutorSnapshot, ...]
    nodes: tuple[int, ...]
    addresses: tuple[str, ...]
    slots: tuple[SlotUse, ...]
    resources: tuple[str, ...]
    rows: Floats
    unit: float

    @property
    def bottleneck(self) -> str:
        """The resource that is used most, which planners balance."""
        return self.resources[self.problem.bottleneck]


def placed_executors(
    snapshot: Snapshot,
    job: JobSnapshot,
    loads: Mapping[JobKey, JobLoads],
    settings: PlacementSettings,
    speeds: Mapping[str, float] | None = None,
    history: Sequence[JobLoads] = (),
    held: frozenset[ExecutorId] = frozenset(),
) -> PlacedExecutors:
    """Return the placement problem of a job.

    Parameters
    ----------
    snapshot : Snapshot
        The cluster.
    job : JobSnapshot
        The job of the snapshot whose homes are planned.
    loads : mapping of JobKey to JobLoads
        The measured loads of all jobs.
    settings : PlacementSettings
        Budgets and the capacity of the network.
    speeds : mapping of str to float, optional
        The speed of a core of each node by address; 1 where it is left out.
    history : sequence of JobLoads, optional
        The job's loads in earlier periods, oldest first.
    held : frozenset of ExecutorId, optional
        Executors of the job that stay, unless their node is retiring; as do those that are pinned.

    Returns
    -------
    PlacedExecutors
        The problem. Nodes without slots and without homes are no bins.

    Raises
    ------
    PlanningError
        If no node stays.
    """
    speed = speeds or {}
    hosts = {executor.home for one in snapshot.jobs for executor in one.executors}
    nodes = tuple(place for place, node in enumerate(snapshot.nodes) if node.cores > 0 or place in hosts)
    bins = {place: at for at, place in enumerate(nodes)}
    draining = [snapshot.nodes[place].retiring for place in nodes]
    if all(draining):
        raise PlanningError(f"homes of job {job.name!r} cannot be planned: no node stays. Add workers.")
    groups = [_at_home(one, one.executor, loads[job_key(job)], draining[bins[one.home]]) for one in job.executors]
    groups += _fixed(snapshot, job, loads)
    stay = [one.executor in held or one.pinned for one in job.executors]
    current = np.array([bins[group.node] for group in groups], dtype=np.int64)
    leaves = np.array(draining)[current]
    pinned = np.array([*stay, *[True] * (len(groups) - len(stay))], dtype=np.bool_) & ~leaves
    known = all(snapshot.nodes[place].memory > 0 for place in nodes)
    columns = [0, 1, 2] if known else [0, 2]
    factors = np.array([speed.get(snapshot.nodes[place].address, 1.0) for place in nodes])
    needs = [group.load for group in groups]
    table = np.array(
        [[one.processor for one in needs], [one.memory for one in needs], [one.network for one in needs]],
        dtype=np.float64,
    ).T
    table[:, 0] *= factors[current]
    capacity = np.array([_capacity(snapshot.nodes[place], speed, settings) for place in nodes], dtype=np.float64)
    # Each resource in shares of what the nodes have together, since bytes and cores differ by nine orders.
    whole = capacity.sum(axis=0) / 100
    table, capacity = table / whole, capacity / whole
    names = [group.name for group in groups]
    earlier = [[one.processor if one else 0.0 for one in map(period.get, names)] for period in history]
    # Any state may leave a retiring node, one at a time at least.
    state = np.array([one.state_bytes for one in needs], dtype=np.float64)
    leaving = state[leaves].tolist()
    problem = PlacementProblem(
        table[:, columns],
        current,
        len(nodes),
        state_bytes=state,
        capacity=capacity[:, columns],
        draining=draining,
        traffic=_traffic(groups, len(job.executors)),
        operator=_numbered([name.component for name in names]),
        history=earlier or None,
        max_moves=settings.max_moves,
        max_cost=max([settings.budget_bytes, *leaving]),
        pinned=pinned,
    )
    return PlacedExecutors(
        job_key(job),
        problem,
        tuple(one.executor for one in job.executors),
        job.executors,
        nodes,
        tuple(snapshot.nodes[place].address for place in nodes),
        tuple(map(_slots(snapshot).__getitem__, nodes)),
        tuple(RESOURCES[column] for column in columns),
        np.array([one.rows for one in needs], dtype=np.float64),
        float(whole[0]),
    )


def with_moves(snapshot: Snapshot, moves: Sequence[HomeMove]) -> Snapshot:
    """Return a snapshot as it would be after some moves: homes at their new nodes, with the cores that were at the old.

    Where shards move and the home stays, only the cores are at the new node.

    Parameters
    ----------
    snapshot : Snapshot
        The cluster.
    moves : sequence of HomeMove
        Moves of its executors.

    Returns
    -------
    Snapshot
        The same measurements at other homes.
    """
    targets = {(move.job, move.generation, move.executor): move.target for move in moves}
    apart = {(move.job, move.generation, move.executor) for move in moves if move.strategy == LABELLED}
    jobs = []
    for job in snapshot.jobs:
        executors = []
        for one in job.executors:
            key = (*job_key(job), one.executor)
            after = at_home(one, targets.get(key, one.home))
            executors.append(replace(after, home=one.home) if key in apart else after)
        jobs.append(replace(job, executors=tuple(executors)))
    return replace(snapshot, jobs=tuple(jobs))


def at_home(executor: ExecutorSnapshot, home: int) -> ExecutorSnapshot:
    """Return an executor with another home, where the cores are that were at its old one."""
    if home == executor.home:
        return executor
    cores = {node: count for node, count in executor.cores.items() if node != executor.home}
    moved = executor.cores.get(executor.home, 0)
    if moved:
        cores[home] = cores.get(home, 0) + moved
    return replace(executor, home=home, cores=cores)


_NONE = ExecutorLoad()


@dataclass(slots=True)
class _Group:
    """An executor or an instance of a source, at its node."""

    name: ExecutorId
    node: int
    load: ExecutorLoad


def _at_home(one: ExecutorSnapshot, name: ExecutorId, loads: JobLoads, retiring: bool) -> _Group:
    """Return what an executor needs at its home."""
    load = loads.get(one.executor)
    if load is not None and _apart(one, retiring):
        load = replace(load, processor=0.0, rows=0.0)
    return _Group(name, one.home, load or _NONE)


def _apart(one: ExecutorSnapshot, retiring: bool) -> bool:
    """Return whether an executor has no core at home, although it could."""
    return bool(one.cores) and one.home not in one.cores and not retiring


def _tasks(job: JobSnapshot, loads: JobLoads, nodes: Sequence[NodeSnapshot]) -> list[_Group]:
    """Return what the tasks of executors need that have no core at home, on the nodes of their cores."""
    found = []
    for one in job.executors:
        load = loads.get(one.executor)
        if load is None or not _apart(one, nodes[one.home].retiring):
            continue
        name = ExecutorId(f"{job.name}/{one.executor.component}/tasks", one.executor.index)
        for node, count in one.cores.items():
            share = count / one.total_cores
            part = ExecutorLoad(processor=share * load.processor, rows=share * load.rows)
            found.append(_Group(name, node, part))
    return found


def _fixed(snapshot: Snapshot, job: JobSnapshot, loads: Mapping[JobKey, JobLoads]) -> list[_Group]:
    """Return the sources of a job and the executors of others, except on nodes that are retiring."""
    found = [_Group(ExecutorId(one.component, one.index), one.node, _NONE) for one in job.sources]
    for other in snapshot.jobs:
        if other is not job:
            found += [
                _at_home(one, ExecutorId(f"{other.name}/{one.executor.component}", one.executor.index),
                         loads[job_key(other)], snapshot.nodes[one.home].retiring)
                for one in other.executors
            ]  # fmt: skip
        found += _tasks(other, loads[job_key(other)], snapshot.nodes)
    known = {place for place, node in enumerate(snapshot.nodes) if node.cores > 0 and not node.retiring}
    return [group for group in found if group.node in known]


def _capacity(
    node: NodeSnapshot, speeds: Mapping[str, float], settings: PlacementSettings
) -> tuple[float, float, float]:
    processor = max(node.cores, 1) * speeds.get(node.address, 1.0)
    return processor, max(node.memory * settings.memory_share, 1.0), settings.bandwidth


def _slots(snapshot: Snapshot) -> list[SlotUse]:
    """Return the slots of each node of a snapshot, and the cores that executors have there."""
    held = [0] * len(snapshot.nodes)
    for job in snapshot.jobs:
        for one in job.executors:
            for node, count in one.cores.items():
                held[node] += count
    return [SlotUse(node.cores, taken) for node, taken in zip(snapshot.nodes, held, strict=True)]


class _Places(dict[tuple[str, int], int]):
    """The place of each group by name; −1 for origins that are not known, as on nodes that are retiring."""

    def __missing__(self, name: tuple[str, int]) -> int:
        return -1


def _traffic(groups: Sequence[_Group], own: int) -> coo_matrix:
    places = _Places((group.name, at) for at, group in enumerate(groups))
    loads = [group.load for group in groups[:own]]
    parts = [load.single or [(*origin, rate) for origin, rate in load.summed.items()] for load in loads]
    rows, rates = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for start in range(0, own, _TOGETHER):
        # Components, numbers and rates in turn: large clusters have many of them, and no object is made for any.
        flat: list[Any] = list(chain.from_iterable(chain.from_iterable(parts[start : start + _TOGETHER])))
        names = zip(flat[::3], flat[1::3], strict=True)
        rows.append(np.fromiter(map(places.__getitem__, names), np.int64, len(flat) // 3))
        rates.append(np.array(flat[2::3], dtype=np.float64))
    row = np.concatenate(rows)
    columns = np.repeat(np.arange(own), [len(part) for part in parts])
    known = row >= 0
    entries = np.concatenate(rates)[known], (row[known], columns[known])
    return coo_matrix(entries, shape=(len(groups), len(groups)))


def _numbered(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]

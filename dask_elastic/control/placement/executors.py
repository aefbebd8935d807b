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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.measured_loads import MEMORY, NETWORK, PROCESSOR, ROWS, STATE, JobLoads
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.new_home import SlotUse
from dask_elastic.planning.placement.problem import Floats, PlacementProblem
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import LABELLED, HomeMove
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Inputs, JobSnapshot, NodeSnapshot, Snapshot

RESOURCES = ("processor time", "memory", "network")
"""The columns of the loads; memory is left out where that of a node is not known."""


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
    pause: Callable[[], None] = no_pause,
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
    pause : callable
        Called about every millisecond of work, also by the planner of the problem.

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
    pause()
    hosts = {executor.home for one in snapshot.jobs for executor in one.executors}
    nodes = tuple(place for place, node in enumerate(snapshot.nodes) if node.cores > 0 or place in hosts)
    bins = {place: at for at, place in enumerate(nodes)}
    draining = [snapshot.nodes[place].retiring for place in nodes]
    if all(draining):
        raise PlanningError(f"homes of job {job.name!r} cannot be planned: no node stays. Add workers.")
    own, others = _at_home(job, loads[job_key(job)], snapshot.nodes, pause), _fixed(snapshot, job, loads, pause)
    names, at = own.names + others.names, own.nodes + others.nodes
    needs = np.concatenate([own.needs, others.needs])
    current = np.array([bins[node] for node in at], dtype=np.int64)
    leaves = np.array(draining)[current]
    pause()
    stay = [one.executor in held or one.pinned for one in job.executors]
    pinned = np.array(stay + [True] * len(others.names), dtype=np.bool_) & ~leaves
    pause()
    known = all(snapshot.nodes[place].memory > 0 for place in nodes)
    columns = [0, 1, 2] if known else [0, 2]
    factors = np.array([speed.get(snapshot.nodes[place].address, 1.0) for place in nodes])
    table = needs[:, [PROCESSOR, MEMORY, NETWORK]]
    table[:, 0] *= factors[current]
    capacities = [_capacity(snapshot.nodes[place], speed, settings) for place in in_turns(nodes, pause)]
    capacity = np.array(capacities, dtype=np.float64)
    # Each resource in shares of what the nodes have together, since bytes and cores differ by nine orders.
    whole = capacity.sum(axis=0) / 100
    table, capacity = table / whole, capacity / whole
    none = np.zeros(len(others.names))
    earlier = [np.append(period.needs_of(own.names)[:, PROCESSOR], none) for period in history]
    # Any state may leave a retiring node, one at a time at least.
    state = needs[:, STATE]
    leaving = state[leaves].tolist()
    problem = PlacementProblem(
        table[:, columns],
        current,
        len(nodes),
        state_bytes=state,
        capacity=capacity[:, columns],
        draining=draining,
        traffic=_traffic(names, loads[job_key(job)].traffic_of(own.names), pause),
        operator=_numbered([name.component for name in names]),
        history=earlier or None,
        max_moves=settings.max_moves,
        max_cost=max([settings.budget_bytes, *leaving]),
        pinned=pinned,
        pause=pause,
    )
    pause()
    return PlacedExecutors(
        job_key(job),
        problem,
        tuple(own.names),
        job.executors,
        nodes,
        tuple(snapshot.nodes[place].address for place in nodes),
        tuple(map(_slots(snapshot, pause).__getitem__, nodes)),
        tuple(RESOURCES[column] for column in columns),
        needs[:, ROWS],
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


class _Groups(NamedTuple):
    """Executors and instances of sources, each at its node, and what they need of it."""

    names: list[ExecutorId]
    nodes: list[int]
    needs: Floats


def _at_home(job: JobSnapshot, loads: JobLoads, nodes: Sequence[NodeSnapshot], pause: Callable[[], None]) -> _Groups:
    """Return what the executors of a job need at their homes."""
    pause()
    names = [one.executor for one in job.executors]
    needs = loads.needs_of(names)
    pause()
    apart = np.array(_apart(job, nodes), dtype=np.int64)
    needs[apart, PROCESSOR] = needs[apart, ROWS] = 0.0
    return _Groups(names, [one.home for one in job.executors], needs)


def _apart(job: JobSnapshot, nodes: Sequence[NodeSnapshot]) -> list[int]:
    """Return which executors of a job have no core at home, although they could."""
    return [
        place
        for place, one in enumerate(job.executors)
        if one.home not in one.cores and one.cores and not nodes[one.home].retiring
    ]


def _tasks(job: JobSnapshot, loads: JobLoads, nodes: Sequence[NodeSnapshot]) -> _Groups:
    """Return what the tasks of executors need that have no core at home, on the nodes of their cores."""
    apart = [job.executors[place] for place in _apart(job, nodes)]
    tasks = [
        (place, node, count / one.total_cores) for place, one in enumerate(apart) for node, count in one.cores.items()
    ]
    places = [place for place, _, _ in tasks]
    needs = np.zeros((len(tasks), loads.needs.shape[1]))
    whole = loads.needs_of([one.executor for one in apart])[places]
    for column in (PROCESSOR, ROWS):
        needs[:, column] = whole[:, column]
        needs[:, column] *= [share for _, _, share in tasks]
    names = [_named(job, apart[place].executor, "/tasks") for place in places]
    return _Groups(names, [node for _, node, _ in tasks], needs)


def _fixed(
    snapshot: Snapshot, job: JobSnapshot, loads: Mapping[JobKey, JobLoads], pause: Callable[[], None]
) -> _Groups:
    """Return the sources of a job and the executors of others, except on nodes that are retiring."""
    sources = [ExecutorId(one.component, one.index) for one in job.sources]
    columns = loads[job_key(job)].needs.shape[1]
    parts = [_Groups(sources, [one.node for one in job.sources], np.zeros((len(sources), columns)))]
    for other in snapshot.jobs:
        pause()
        if other is not job:
            found = _at_home(other, loads[job_key(other)], snapshot.nodes, pause)
            parts.append(found._replace(names=[_named(other, name) for name in found.names]))
        parts.append(_tasks(other, loads[job_key(other)], snapshot.nodes))
    names, nodes = (list(chain.from_iterable(part[column] for part in parts)) for column in (0, 1))
    pause()
    staying = {place for place, node in enumerate(snapshot.nodes) if node.cores > 0 and not node.retiring}
    kept = [place for place, node in enumerate(nodes) if node in staying]
    pause()
    needs = np.concatenate([part.needs for part in parts])
    return _Groups([names[place] for place in kept], [nodes[place] for place in kept], needs[kept])


def _named(job: JobSnapshot, executor: ExecutorId, kind: str = "") -> ExecutorId:
    """Return the name of a group that is no executor of the planned job."""
    return ExecutorId(f"{job.name}/{executor.component}{kind}", executor.index)


def _capacity(
    node: NodeSnapshot, speeds: Mapping[str, float], settings: PlacementSettings
) -> tuple[float, float, float]:
    processor = max(node.cores, 1) * speeds.get(node.address, 1.0)
    return processor, max(node.memory * settings.memory_share, 1.0), settings.bandwidth


def _slots(snapshot: Snapshot, pause: Callable[[], None]) -> list[SlotUse]:
    """Return the slots of each node of a snapshot, and the cores that executors have there."""
    held = [0] * len(snapshot.nodes)
    for job in snapshot.jobs:
        for one in in_turns(job.executors, pause):
            for node, count in one.cores.items():
                held[node] += count
    return [SlotUse(node.cores, taken) for node, taken in zip(snapshot.nodes, held, strict=True)]


def _traffic(names: Sequence[ExecutorId], inputs: Sequence[Inputs], pause: Callable[[], None]) -> coo_matrix:
    """Return the bytes per second from group to group.

    Those from groups that are not known, as on nodes that are retiring, are left out.

    Parameters
    ----------
    names : sequence of ExecutorId
        The groups.
    inputs : sequence of Inputs
        What each of the first groups gets.
    pause : callable
        Called about every millisecond of work.
    """
    pause()
    component = {name: number for number, name in enumerate(dict.fromkeys(name.component for name in names))}
    pause()
    table = np.full((len(component) + 1, max((name.index for name in names), default=0) + 2), -1, dtype=np.int64)
    table[[component[name.component] for name in names], [name.index for name in names]] = np.arange(len(names))
    pause()
    # Many executors get rows of the same components in the same order.
    known = {
        components: np.array([component.get(one, len(component)) for one in components], dtype=np.int64)
        for components in {one.components for one in inputs}
    }
    nothing = np.zeros(0, dtype=np.int64)
    pause()
    number = np.concatenate([nothing, *[known[one.components] for one in inputs]])
    pause()
    index = np.minimum(np.concatenate([nothing, *[one.indexes for one in inputs]]), table.shape[1] - 1)
    pause()
    row, rate = table[number, index], np.concatenate([nothing, *[one.rates for one in inputs]])
    pause()
    column = np.repeat(np.arange(len(inputs)), [len(one.components) for one in inputs])
    pause()
    real = row >= 0
    entries = rate[real], (row[real], column[real])
    pause()
    return coo_matrix(entries, shape=(len(names), len(names)))


def _numbered(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]

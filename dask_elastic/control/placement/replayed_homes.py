"""What a placement would have done on recorded snapshots: its homes and their quality beside the recorded ones.

The load and the traffic are those of the recording. The homes are those of the replayed placement, whose moves are
carried out from one snapshot to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.executors import at_home, with_moves
from dask_elastic.control.placement.loop import PlacementLoop
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


@dataclass(frozen=True)
class ReplayedHomes:
    """One job in one period of a placement loop.

    Parameters
    ----------
    time : float
        The time of the decision in seconds.
    job : str
        The name of the job.
    placement : str
        The name of the placement.
    moves : int
        Homes that it moves.
    moved_bytes : float
        Bytes of state that move with them.
    pause : float
        The longest expected pause of an executor, in seconds.
    recorded_distance, distance : float
        The load distance as a share of the mean load: with the recorded homes, and with those of the placement.
    recorded_collocation, collocation : float
        The part of the traffic that stays within nodes: with the recorded homes, and with those of the placement.
    reason : str
        Why homes move, or why they do not.
    """

    time: float
    job: str
    placement: str
    moves: int
    moved_bytes: float
    pause: float
    recorded_distance: float
    distance: float
    recorded_collocation: float
    collocation: float
    reason: str


@dataclass(frozen=True)
class HomesSummary:
    """One job over a whole replay.

    Parameters
    ----------
    job : str
        The name of the job.
    periods, moves : int
        Number of decisions, and of homes that moved.
    moved_bytes, pause : float
        State that moved with them, and the longest expected pause in seconds.
    recorded_distance, distance, recorded_collocation, collocation : float
        Means over the periods; see `ReplayedHomes`.
    """

    job: str
    periods: int
    moves: int
    moved_bytes: float
    pause: float
    recorded_distance: float
    distance: float
    recorded_collocation: float
    collocation: float


def replayed_homes(
    snapshots: Iterable[Snapshot], placement: str, settings: PlacementSettings | None = None
) -> list[ReplayedHomes]:
    """Run the placement loop on recorded snapshots, and carry its moves out from one snapshot to the next.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The recording, oldest snapshot first.
    placement : str
        The placement for all jobs, not ``"spread"``.
    settings : PlacementSettings, optional
        The settings of the loop; the defaults if not given.

    Returns
    -------
    list of ReplayedHomes
        One for each job in each period. Jobs of the static paradigm are left out.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot
    >>> def busy(index):
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, arrival_rate=400.0, service_rate=500.0)
    >>> nodes = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
    >>> job = JobSnapshot("words", 1, (busy(0), busy(1)))
    >>> recorded = [Snapshot(float(second), nodes, (job,)) for second in range(40)]
    >>> [(one.moves, one.recorded_distance, one.distance) for one in replayed_homes(recorded, "flux")]
    [(0, 1.0, 1.0), (1, 1.0, 1.0), (0, 1.0, 0.0)]
    """
    as_recorded, own_loop = PlacementLoop(settings, placement), PlacementLoop(settings, placement)
    homes: dict[tuple[JobKey, ExecutorId], _Place] = {}
    found = []
    for snapshot in snapshots:
        seen = _with_homes(snapshot, homes)
        recorded = {(one.job, one.generation): one for one in as_recorded.tick(snapshot)}
        decisions = own_loop.tick(seen)
        for one in decisions:
            there = recorded[one.job, one.generation]
            found.append(
                ReplayedHomes(
                    time=one.time,
                    job=one.job,
                    placement=placement,
                    moves=len(one.moves),
                    moved_bytes=one.moved_bytes,
                    pause=one.pause,
                    recorded_distance=there.distance,
                    distance=one.distance,
                    recorded_collocation=there.collocation,
                    collocation=one.collocation,
                    reason=one.reason,
                )
            )
        after = with_moves(seen, [move for one in decisions for move in one.moves])
        homes = {
            (job_key(job), executor.executor): _place(executor, after.nodes)
            for job in after.jobs
            for executor in job.executors
        }
    return found


def homes_summaries(periods: Sequence[ReplayedHomes]) -> list[HomesSummary]:
    """Return the periods of each job together, in the order in which the jobs appear.

    Parameters
    ----------
    periods : sequence of ReplayedHomes
        Those of a replay.

    Returns
    -------
    list of HomesSummary
        One for each job.
    """
    names = {one.job: 0 for one in periods}
    return [_summary(name, [one for one in periods if one.job == name]) for name in names]


def _summary(name: str, periods: Sequence[ReplayedHomes]) -> HomesSummary:
    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(periods)

    return HomesSummary(
        job=name,
        periods=len(periods),
        moves=sum(one.moves for one in periods),
        moved_bytes=math.fsum(one.moved_bytes for one in periods),
        pause=max(one.pause for one in periods),
        recorded_distance=mean(one.recorded_distance for one in periods),
        distance=mean(one.distance for one in periods),
        recorded_collocation=mean(one.recorded_collocation for one in periods),
        collocation=mean(one.collocation for one in periods),
    )


_Place = tuple[str, str]
"""The addresses of the home of an executor, and of the cores that were there: another one if only its shards moved."""


def _place(executor: ExecutorSnapshot, nodes: Sequence[NodeSnapshot]) -> _Place:
    at = executor.home
    if executor.cores and at not in executor.cores:
        at = max(executor.cores, key=lambda node: executor.cores[node])
    return nodes[executor.home].address, nodes[at].address


def _with_homes(snapshot: Snapshot, homes: Mapping[tuple[JobKey, ExecutorId], _Place]) -> Snapshot:
    """Return a snapshot with the homes of the replayed placement; the recorded ones where a worker has left."""
    places = {node.address: place for place, node in enumerate(snapshot.nodes)}

    def moved(job: JobSnapshot, one: ExecutorSnapshot) -> ExecutorSnapshot:
        home, cores = (places.get(address, one.home) for address in homes.get((job_key(job), one.executor), ("", "")))
        return replace(at_home(one, cores), home=home)

    jobs = [replace(job, executors=tuple(moved(job, one) for one in job.executors)) for job in snapshot.jobs]
    return replace(snapshot, jobs=tuple(jobs))

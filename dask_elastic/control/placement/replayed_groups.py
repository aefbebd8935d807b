"""What a placement would have done with key groups on recorded snapshots, beside what was recorded.

The loads and the traffic of the groups are those of the recording. Their executors are those of the replayed placement,
whose moves are carried out from one snapshot to the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.placement.group_decision import GroupDecision
from dask_elastic.control.placement.group_map import GroupMap, OperatorGroups
from dask_elastic.control.placement.recorded_groups import RecordedGroupPlanning, owners_of
from dask_elastic.control.placement.regrouped import regrouped
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.plan import StrategyCost
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ReplayedGroups:
    """One operator in one period of the planning of key groups.

    Parameters
    ----------
    time : float
        The time of the decision in seconds.
    job, operator : str
        The names of the job and of the operator.
    placement : str
        The name of the placement.
    moves : int
        Groups that it moves.
    moved_bytes, paused_bytes : float
        Bytes of state that move with them, and those that are expected to move while rows wait.
    pause : float
        The longest expected pause of a group, in seconds.
    strategy : str
        How they move; empty if none does.
    costs : tuple of StrategyCost
        What each strategy costs.
    recorded_moves : int
        Groups that have moved in the recording since the last decision.
    recorded_bytes : float
        Bytes of their state.
    recorded_pause : float or None
        The longest pause of a group that was measured, in seconds; None if none was.
    recorded_distance, distance : float
        The load distance as a share of the mean load: with the recorded executors, and with those of the placement.
    recorded_collocation, collocation : float
        The share of the traffic within nodes: with the recorded executors, and with those of the placement; 1 if the
        placement does not read traffic.
    measured : float or None
        Seconds of mean latency that were measured with the recorded executors.
    predicted : float or None
        What the model predicts with those of the placement, after its moves; ``inf`` if queues grow, None without a
        prediction.
    reason : str
        Why groups move, or why they do not.
    groups : tuple of (int, int, int)
        Each group that moves, with its executor and its next one.
    """

    time: float
    job: str
    operator: str
    placement: str
    moves: int
    moved_bytes: float
    paused_bytes: float
    pause: float
    strategy: str
    costs: tuple[StrategyCost, ...]
    recorded_moves: int
    recorded_bytes: float
    recorded_pause: float | None
    recorded_distance: float
    distance: float
    recorded_collocation: float
    collocation: float
    measured: float | None
    predicted: float | None
    reason: str
    groups: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class GroupsSummary:
    """One operator over a whole replay.

    Parameters
    ----------
    job, operator : str
        The names of the job and of the operator.
    periods, moves, recorded_moves : int
        Number of decisions, and of groups that moved: by the placement, and in the recording.
    moved_bytes, recorded_bytes : float
        State that moved with them.
    pause : float
        The longest expected pause in seconds.
    recorded_pause : float or None
        The longest measured one; None if none was measured.
    recorded_distance, distance, recorded_collocation, collocation : float
        Means over the periods; see `ReplayedGroups`.
    measured, predicted : float or None
        Medians over the periods; None without any.
    """

    job: str
    operator: str
    periods: int
    moves: int
    recorded_moves: int
    moved_bytes: float
    recorded_bytes: float
    pause: float
    recorded_pause: float | None
    recorded_distance: float
    distance: float
    recorded_collocation: float
    collocation: float
    measured: float | None
    predicted: float | None


def replayed_groups(
    snapshots: Iterable[Snapshot],
    placement: str,
    settings: PlacementSettings | None = None,
    control: ControlSettings | None = None,
) -> list[ReplayedGroups]:
    """Run the planning of key groups on recorded snapshots, and carry its moves out from one snapshot to the next.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The recording, oldest snapshot first.
    placement : str
        The placement for all jobs, neither ``"spread"`` nor one of consecutive executors.
    settings : PlacementSettings, optional
        The settings; the defaults if not given.
    control : ControlSettings, optional
        Those of the control loop, whose model predicts latencies; the defaults if not given.

    Returns
    -------
    list of ReplayedGroups
        One for each measured operator in each period; none of jobs whose groups do not move, or of recordings that do
        not say where they are.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, NodeSnapshot
    >>> loads = {0: [0.3, 0.3, 0.0, 0.0], 1: [0.0, 0.0, 0.1, 0.1]}
    >>> def busy(index):
    ...     known = {"shard_load": np.array(loads[index]), "groups": np.flatnonzero(loads[index])}
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, 100.0, 500.0, **known)
    >>> job = JobSnapshot("words", 1, (busy(0), busy(1)), paradigm="resource-centric")
    >>> nodes = (NodeSnapshot("tcp://a:1", "a", 4),)
    >>> recorded = [Snapshot(float(second), nodes, (job,)) for second in range(40)]
    >>> found = replayed_groups(recorded, "flux")
    >>> [(one.moves, round(one.recorded_distance, 2), round(one.distance, 2)) for one in found]
    [(0, 0.5, 0.5), (2, 0.5, 0.5), (0, 0.5, 0.0)]
    """
    as_recorded, own = (RecordedGroupPlanning(settings, placement) for _ in range(2))
    placed: dict[tuple[JobKey, str], Ints] = {}
    course, found, loop = _Course(), [], ControlLoop(control or ControlSettings())
    for snapshot in snapshots:
        seen = _with_owners(snapshot, placed)
        course.observe(snapshot)
        recorded = {(one.job, one.generation, one.operator): one for one in as_recorded.tick(snapshot)}
        decisions = own.tick(seen)
        owners = owners_of(own.posed(seen))
        placed |= {(job, name): np.array(of) for job, by_name in owners.items() for name, of in by_name.items()}
        for one in decisions:
            key = (one.job, one.generation), one.operator
            moves = {group: to for move in one.moves for group, to in move.items()}
            groups = tuple((group, int(placed[key][group]), to) for group, to in moves.items())
            placed[key][[*moves]] = [*moves.values()]
            if (there := recorded.get((*key[0], one.operator))) is not None:
                latencies = _latencies(loop, snapshot, key[0], placed)
                found.append(_row(snapshot.now, placement, one, there, course.taken(*key), latencies, groups))
        loop.tick(snapshot)
    return found


def groups_summaries(periods: Sequence[ReplayedGroups]) -> list[GroupsSummary]:
    """Return the periods of each operator together, in the order in which the operators appear.

    Parameters
    ----------
    periods : sequence of ReplayedGroups
        Those of a replay.

    Returns
    -------
    list of GroupsSummary
        One for each operator.
    """
    names = dict.fromkeys((one.job, one.operator) for one in periods)
    return [_summary([one for one in periods if (one.job, one.operator) == name]) for name in names]


def _summary(periods: Sequence[ReplayedGroups]) -> GroupsSummary:
    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(periods)

    return GroupsSummary(
        job=periods[0].job,
        operator=periods[0].operator,
        periods=len(periods),
        moves=sum(one.moves for one in periods),
        recorded_moves=sum(one.recorded_moves for one in periods),
        moved_bytes=math.fsum(one.moved_bytes for one in periods),
        recorded_bytes=math.fsum(one.recorded_bytes for one in periods),
        pause=max(one.pause for one in periods),
        recorded_pause=max((one.recorded_pause for one in periods if one.recorded_pause is not None), default=None),
        recorded_distance=mean(one.recorded_distance for one in periods),
        distance=mean(one.distance for one in periods),
        recorded_collocation=mean(one.recorded_collocation for one in periods),
        collocation=mean(one.collocation for one in periods),
        measured=_median(one.measured for one in periods),
        predicted=_median(one.predicted for one in periods),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@dataclass
class _Taken:
    """What recorded moves of an operator have taken since the last decision."""

    moves: int = 0
    nbytes: float = 0.0
    pauses: list[float] = field(default_factory=list)


class _Course:
    """Follows where the groups were in the recording."""

    def __init__(self) -> None:
        self._owners: dict[tuple[JobKey, str], Ints] = {}
        self._taken: dict[tuple[JobKey, str], _Taken] = {}
        self._seen: dict[JobKey, int] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Take the next snapshot."""
        for job in snapshot.jobs:
            for name, groups in GroupMap.of(job, {}).operators.items():
                self._follow(job_key(job), name, groups)
            self._note_pauses(job)

    def taken(self, job: JobKey, operator: str) -> _Taken:
        """Return what the moves of an operator have taken since the last call."""
        return self._taken.pop((job, operator), _Taken())

    def _follow(self, job: JobKey, operator: str, groups: OperatorGroups) -> None:
        before = self._owners.get((job, operator), groups.owner)
        self._owners[job, operator] = groups.owner
        if len(before) == len(groups.owner) and (moved := before != groups.owner).any():
            taken = self._taken.setdefault((job, operator), _Taken())
            taken.moves += int(moved.sum())
            taken.nbytes += float(groups.nbytes[moved].sum())

    def _note_pauses(self, job: JobSnapshot) -> None:
        key = job_key(job)
        # Moves before the recording began are not a part of it.
        first = job.group_moves[-1].number if job.group_moves else 0
        last = self._seen.get(key, first)
        for move in job.group_moves:
            if move.number > last:
                self._taken.setdefault((key, move.operator), _Taken()).pauses.append(move.pause)
        self._seen[key] = max(last, first)


def _row(
    time: float,
    placement: str,
    made: GroupDecision,
    there: GroupDecision,
    taken: _Taken,
    latencies: tuple[float | None, float | None],
    groups: tuple[tuple[int, int, int], ...],
) -> ReplayedGroups:
    measured, predicted = latencies
    return ReplayedGroups(
        time=time,
        job=made.job,
        operator=made.operator,
        placement=placement,
        moves=len(groups),
        moved_bytes=made.moved_bytes if made.moves else 0.0,
        paused_bytes=made.paused_bytes if made.moves else 0.0,
        pause=made.pause if made.moves else 0.0,
        strategy=made.strategy if made.moves else "",
        costs=made.costs if made.moves else (),
        recorded_moves=taken.moves,
        recorded_bytes=taken.nbytes,
        recorded_pause=max(taken.pauses, default=None),
        recorded_distance=there.distance,
        distance=made.distance,
        recorded_collocation=there.collocation,
        collocation=made.collocation,
        measured=measured,
        predicted=predicted,
        reason=made.reason,
        groups=groups,
    )


def _latencies(
    loop: ControlLoop, snapshot: Snapshot, job: JobKey, placed: Mapping[tuple[JobKey, str], Ints]
) -> tuple[float | None, float | None]:
    """Return the measured latency of a job, and the predicted one with the executors of the placement."""
    recorded = next(one for one in snapshot.jobs if job_key(one) == job)
    [made] = _with_owners(replace(snapshot, jobs=(recorded,)), placed).jobs
    return recorded.latency, loop.forecast(snapshot, made)


def _with_owners(snapshot: Snapshot, placed: Mapping[tuple[JobKey, str], Ints]) -> Snapshot:
    """Return a snapshot with the executors of the replayed placement."""
    jobs = []
    for job in snapshot.jobs:
        own = {name: owners for (key, name), owners in placed.items() if key == job_key(job)}
        jobs.append(regrouped(job, own) if own else job)
    return replace(snapshot, jobs=tuple(jobs))

"""The next decision about the key groups of a job, before it is made: its moves, and what they cost and gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dask_elastic.control.explanation.amounts import size
from dask_elastic.control.keys import job_key
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.control.reason import duration
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import StrategyCost
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

if TYPE_CHECKING:
    from dask_elastic.control.placement.group_decision import GroupDecision
    from dask_elastic.control.placement.settings import PlacementSettings

SHOWN = 8
"""Number of groups of an operator that are named; the others are counted."""


@dataclass(frozen=True)
class PlannedGroupMove:
    """A move of one key group that is planned.

    Parameters
    ----------
    group : int
        The group.
    source, target : ExecutorId
        Its executor and its next one.
    source_home, target_home : str
        The addresses of their workers.
    moved_bytes : float
        Bytes of its state.

    Examples
    --------
    >>> ids = ExecutorId("count", 0), ExecutorId("count", 1)
    >>> print(PlannedGroupMove(7, *ids, "tcp://a:1", "tcp://b:1", 2048.0))
    group 7: count[0] on tcp://a:1 → count[1] on tcp://b:1, 2.0 kiB of state
    """

    group: int
    source: ExecutorId
    target: ExecutorId
    source_home: str
    target_home: str
    moved_bytes: float

    def __str__(self) -> str:
        places = f"{self.source} on {self.source_home} → {self.target} on {self.target_home}"
        return f"group {self.group}: {places}, {size(self.moved_bytes)} of state"


@dataclass(frozen=True)
class PlannedOperatorGroups:
    """What would be decided now about the key groups of one operator.

    Parameters
    ----------
    operator : str
        The operator.
    moves : tuple of PlannedGroupMove
        The moves, in the order in which they are carried out; none if groups stay.
    parts : int
        The number of mini-migrations, one after the other; one if all instances pause.
    deferred : bool
        Whether the moves are not made yet, as the reason says.
    strategy : {"progressive", "synchronised"}
        How the groups would move.
    pause : float
        Seconds for which rows of a group are expected to wait at most.
    paused_bytes : float
        Bytes of state that are expected to move while rows wait.
    costs : tuple of StrategyCost
        What each strategy costs; empty without moves.
    distance, planned_distance : float
        The load distance now and after the moves, as a share of the mean load of an executor.
    collocation, planned_collocation : float
        The share of the traffic that stays within workers, now and after the moves; 1 if the planner does not read it.
    reason : str
        Why groups move, or why they do not.

    Examples
    --------
    >>> print(PlannedOperatorGroups("count", (), 0, False, "progressive", 0.0, 0.0, (), 0.1, 0.1, 1.0, 1.0, "enough."))
    count: load distance 10 % of the mean; enough.
    """

    operator: str
    moves: tuple[PlannedGroupMove, ...]
    parts: int
    deferred: bool
    strategy: str
    pause: float
    paused_bytes: float
    costs: tuple[StrategyCost, ...]
    distance: float
    planned_distance: float
    collocation: float
    planned_collocation: float
    reason: str

    @property
    def moved_bytes(self) -> float:
        """Bytes of state that are expected to move."""
        return sum(move.moved_bytes for move in self.moves)

    def __str__(self) -> str:
        distance, inside = f"{100 * self.distance:.0f} %", f"{100 * self.collocation:.0f} %"
        if not self.moves:
            return f"{self.operator}: load distance {distance} of the mean; {self.reason}"
        title = f"{self.operator}: load distance {distance} → {100 * self.planned_distance:.0f} % of the mean"
        if self.collocation != self.planned_collocation:
            title += f", traffic within workers {inside} → {100 * self.planned_collocation:.0f} %"
        rest = len(self.moves) - SHOWN
        return "\n".join(
            [
                f"{title}; {self.reason}",
                f"  {self._way()}",
                *(f"  {move}" for move in self.moves[:SHOWN]),
                *([f"  and {rest} more groups"] if rest > 0 else []),
            ]
        )

    def _way(self) -> str:
        # Imported with the planning, which has made the decision.
        from dask_elastic.control.placement.group_strategies import compared

        groups = "1 group" if len(self.moves) == 1 else f"{len(self.moves)} groups"
        parts = "at once" if self.parts == 1 else f"in {self.parts} parts, one after the other"
        moved = f"{size(self.moved_bytes)} of state, {size(self.paused_bytes)} of it while rows wait"
        deferred = "; deferred" if self.deferred else ""
        return f"{groups} {parts} ({self.strategy}): {moved}; pause {duration(self.pause)}{deferred}. " + compared(
            self.costs, self.strategy
        )


@dataclass(frozen=True)
class PlannedGroups:
    """What would be decided now about the key groups of a job; nothing is changed.

    Parameters
    ----------
    placement : str
        The placement of the job.
    operators : tuple of PlannedOperatorGroups
        One for each operator that is measured.

    Examples
    --------
    >>> print(PlannedGroups("flux", ()))
    placement 'flux': key groups are not measured yet, or not since some have moved
    """

    placement: str
    operators: tuple[PlannedOperatorGroups, ...]

    @property
    def moved_bytes(self) -> float:
        """Bytes of state that are expected to move."""
        return sum(one.moved_bytes for one in self.operators)

    @property
    def pause(self) -> float | None:
        """The longest expected pause of a group in seconds; None if none moves."""
        return max((one.pause for one in self.operators if one.moves), default=None)

    def __str__(self) -> str:
        title = f"placement {self.placement!r}: "
        if not self.operators:
            return f"{title}key groups are not measured yet, or not since some have moved"
        lines = [line for one in self.operators for line in str(one).splitlines()]
        return "\n".join([f"{title}key groups", *(f"  {line}" for line in lines)])

    def owners(self, job: JobSnapshot) -> dict[str, list[int]]:
        """Return the executor of each key group after the moves, by operator; only of operators with moves.

        Parameters
        ----------
        job : JobSnapshot
            The job, as it was when this was planned.
        """
        known = GroupMap.of(job, {}).operators
        found = {}
        for one in self.operators:
            if one.moves and one.operator in known:
                after = known[one.operator].owner.copy()
                for move in one.moves:
                    after[move.group] = move.target.index
                found[one.operator] = after.tolist()
        return found


def planned_groups(
    job: JobSnapshot, snapshots: Sequence[Snapshot], current: Snapshot, settings: PlacementSettings | None = None
) -> PlannedGroups | None:
    """Return what the planning of key groups would decide now about a job.

    Parameters
    ----------
    job : JobSnapshot
        The job, as in `current`.
    snapshots : sequence of Snapshot
        Earlier ones, oldest first.
    current : Snapshot
        The present one.
    settings : PlacementSettings, optional
        The settings of the planning; the defaults if not given.

    Returns
    -------
    PlannedGroups or None
        None if the job has no planner, or its key groups do not move.
    """
    if job.placement == SPREAD or job.paradigm != "resource-centric":
        return None
    # Planners of placements import SciPy, which takes long.
    from dask_elastic.control.placement.recorded_groups import RecordedGroupPlanning

    planning = RecordedGroupPlanning(settings)
    for snapshot in snapshots:
        planning.tick(_only(snapshot, job))
    return PlannedGroups(
        job.placement, tuple(_shown(one, job, current) for one in planning.decide(_only(current, job)))
    )


def _only(snapshot: Snapshot, job: JobSnapshot) -> Snapshot:
    """Return a snapshot of one job: what moves take is learnt from all, but only this one is planned for."""
    jobs = (one if job_key(one) == job_key(job) else replace(one, placement=SPREAD) for one in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))


def _shown(decision: GroupDecision, job: JobSnapshot, current: Snapshot) -> PlannedOperatorGroups:
    executors = [one for one in job.executors if one.executor.component == decision.operator]
    sizes = np.sum([one.shard_bytes for one in executors if one.shard_bytes is not None], axis=0)
    owner = {group: one for one in executors if one.groups is not None for group in one.groups.tolist()}
    planned = decision.moves or decision.deferred
    moves = [
        _shown_move(group, owner[group], executors[to], float(sizes[group]), current)
        for part in planned
        for group, to in part.items()
    ]
    return PlannedOperatorGroups(
        decision.operator,
        tuple(moves),
        len(planned),
        bool(decision.deferred),
        decision.strategy,
        decision.pause,
        decision.paused_bytes,
        decision.costs,
        decision.distance,
        decision.planned_distance,
        decision.collocation,
        decision.planned_collocation,
        decision.reason,
    )


def _shown_move(
    group: int, source: ExecutorSnapshot, target: ExecutorSnapshot, nbytes: float, current: Snapshot
) -> PlannedGroupMove:
    here, there = (current.nodes[one.home].address for one in (source, target))
    return PlannedGroupMove(group, source.executor, target.executor, here, there, nbytes)

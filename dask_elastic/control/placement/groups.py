"""Decides which key groups move from one executor to another, where each executor has one core.

Goal
    The executors of an operator are loaded evenly, groups are on the nodes of those that they communicate with, and
    little state moves.
Method
    Snapshots are collected for one period. The mean loads of the groups make a placement problem for each operator,
    with the executors as bins, which the job's planner solves within a budget of bytes. A planner that collocates
    groups also gets the traffic with the groups of other operators, which stay meanwhile: operators are planned one
    after the other. Groups move only if plans gain enough in several periods in a row: in mini-migrations of few
    groups, or all at once if upstream instances pause.
Not done
    Load of nodes, since executors keep their homes.

Notes
-----
ALBIC, sections 3 and 4.1; State migration, section 3.2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.group_decision import GroupDecision, GroupMoves
from dask_elastic.control.placement.group_strategies import GroupsMoving, MeasuredGroupMoves, group_costs
from dask_elastic.control.placement.group_traffic import NodeTraffic, node_traffic
from dask_elastic.control.placement.planners import home_planner
from dask_elastic.control.placement.purpose import Purpose
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.steady_time import SteadyTime
from dask_elastic.migration.group_move import PROGRESSIVE, SYNCHRONISED
from dask_elastic.migration.strategy import AUTO
from dask_elastic.planning.mini_migrations import GroupTransfer, mini_migrations
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

Floats = npt.NDArray[np.float64]

TINY_LOAD = 1e-9
"""Cores; an executor with less has none that leaves."""


@dataclass(eq=False)
class _Operator:
    """What is known of one operator of a job when its groups are planned."""

    snapshot: Snapshot
    job: JobSnapshot
    name: str
    owners: dict[str, npt.NDArray[np.int64]]
    load: Floats
    nbytes: Floats

    @property
    def current(self) -> npt.NDArray[np.int64]:
        """The executor of each group."""
        return self.owners[self.name]

    @property
    def executors(self) -> list[ExecutorSnapshot]:
        """Its executors."""
        return [one for one in self.job.executors if one.executor.component == self.name]

    @property
    def collocates(self) -> bool:
        """Whether the planner of the job reads traffic."""
        return Purpose.of(self.job.placement) is Purpose.TRAFFIC

    def traffic(self, pause: Callable[[], None]) -> NodeTraffic | None:
        """Return the traffic of its groups; None if the planner does not read it."""
        if not self.collocates:
            return None
        return node_traffic(self.job.executors, self.name, self.owners, len(self.snapshot.nodes), pause)


@dataclass
class _Memory:
    """What is remembered of one operator of a job."""

    worthwhile: int = 0
    moved_at: float = -np.inf
    owners: npt.NDArray[np.int64] | None = None
    settled_at: float = -np.inf
    history: deque[Floats] = field(default_factory=deque)


class GroupPlanning:
    """Decides which groups of running jobs move. The same snapshots and owners give the same decisions.

    Parameters
    ----------
    settings : PlacementSettings, optional
        The settings; the defaults if not given. `max_moves` is how many groups a node sends, and gets, in one
        mini-migration.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Attributes
    ----------
    measured : MeasuredGroupMoves
        What moves take, learnt from those of all jobs.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, NodeSnapshot
    >>> loads = {0: [0.3, 0.3, 0.0, 0.0], 1: [0.0, 0.0, 0.1, 0.1]}
    >>> def busy(index):
    ...     loads_here = {"shard_load": np.array(loads[index]), "shard_bytes": np.zeros(4)}
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, 100.0, 500.0, **loads_here)
    >>> job = JobSnapshot("words", 1, (busy(0), busy(1)), placement="flux", paradigm="resource-centric")
    >>> planning = GroupPlanning(PlacementSettings(patience=1))
    >>> planning.observe(Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 4),), (job,)))
    >>> [decision] = planning.decide({("words", 1): {"count": [0, 0, 1, 1]}})
    >>> decision.moves, round(decision.distance, 3), round(decision.planned_distance, 3)
    (({0: 1, 2: 0},), 0.5, 0.0)
    """

    def __init__(self, settings: PlacementSettings | None = None, pause: Callable[[], None] = no_pause):
        self.settings = settings or PlacementSettings()
        self._pause = pause
        self._memories: dict[tuple[JobKey, str], _Memory] = {}
        self._period: list[Snapshot] = []
        self._noted: dict[JobKey, int] = {}
        self._time = SteadyTime()
        self.measured = MeasuredGroupMoves(self.settings)

    def observe(self, snapshot: Snapshot) -> None:
        """Take a snapshot, and learn from the moves that it has."""
        self._period.append(self._time.seen(snapshot))
        for job in snapshot.jobs:
            for move in job.group_moves:
                self.moved(job_key(job), move)

    def decide(
        self,
        owners: Mapping[JobKey, Mapping[str, Sequence[int]]],
        strategies: Mapping[JobKey, Mapping[str, str]] | None = None,
    ) -> tuple[GroupDecision, ...]:
        """Decide on the snapshots since the last decision.

        Parameters
        ----------
        owners : mapping of JobKey to mapping of str to sequence of int
            The executor of each group now, by operator, of the jobs to decide for.
        strategies : mapping of JobKey to mapping of str to str, optional
            One of `GROUP_STRATEGIES` for each operator; progressive if not given.

        Returns
        -------
        tuple of GroupDecision
            One for each of their operators that is measured.
        """
        snapshots, self._period = self._period, []
        self._memories = {key: memory for key, memory in self._memories.items() if key[0] in owners}
        running = {job_key(job) for job in (snapshots[-1].jobs if snapshots else ())}
        self._noted = {key: number for key, number in self._noted.items() if key in owners or key in running}
        found = []
        for job in snapshots[-1].jobs if snapshots else ():
            chosen = (strategies or {}).get(job_key(job), {})
            placed = {name: np.array(of, dtype=np.int64) for name, of in owners.get(job_key(job), {}).items()}
            for name in [*placed]:
                since = self._memory(job_key(job), name).settled_at
                settled = [snapshot for snapshot in snapshots if snapshot.now >= since]
                load, nbytes = _mean_loads(settled, job, name, len(placed[name]), self._pause)
                if load is None:
                    continue
                operator = _Operator(snapshots[-1], job, name, placed, load, nbytes)
                made = self._decision(operator)
                planned = made.moves or made.deferred
                found.append(self._weighed(made, operator, chosen.get(name, PROGRESSIVE)) if planned else made)
                # The groups of the next operators follow to where these will be.
                placed = {**placed, name: _after(placed[name], made.moves)}
                self._pause()
        return tuple(found)

    def moved(self, job: JobKey, move: EndedGroupMove) -> None:
        """Learn what a move has taken; what was measured before and meanwhile counts no more.

        Parameters
        ----------
        job : JobKey
            The job.
        move : EndedGroupMove
            The move; one that is known already changes nothing.
        """
        if move.number <= self._noted.get(job, 0):
            return
        self._noted[job] = move.number
        memory = self._memory(job, move.operator)
        memory.settled_at = max(memory.settled_at, self._settled(move))
        if move.drain is not None:
            taken = move.moved_bytes, move.paused_bytes, move.pause, move.seconds
            self.measured.observe(move.strategy, move.drain, *taken)

    def _settled(self, move: EndedGroupMove) -> float:
        """Return the steady time from which on a move disturbs no measurements; it may have ended before a set-back."""
        if not math.isfinite(self._time.now):
            return move.settled
        return min(move.settled + self._time.behind, self._time.now + self.settings.period)

    def _memory(self, job: JobKey, operator: str) -> _Memory:
        return self._memories.setdefault((job, operator), _Memory())

    def _decision(self, operator: _Operator) -> GroupDecision:
        settings, job, current = self.settings, operator.job, operator.current
        memory = self._memory(job_key(job), operator.name)
        if memory.owners is not None and (memory.owners != current).any():
            # Not when a plan is made: it may not be carried out.
            memory.moved_at = operator.snapshot.now
        memory.owners = current
        earlier = np.array(memory.history) if memory.history else None
        memory.history = deque([*memory.history, operator.load], maxlen=settings.windows)
        problem = PlacementProblem(
            operator.load, current, len(operator.executors), state_bytes=operator.nbytes, history=earlier,
            max_cost=settings.budget_bytes, pause=self._pause,
        )  # fmt: skip
        traffic = operator.traffic(self._pause)
        self._pause()
        now = _quality(problem, traffic, current)
        head = *job_key(job), operator.name
        if why := self._rest(problem, now, operator, memory):
            memory.worthwhile = 0
            return _decided(head, (), now, now, why)
        try:
            posed = problem if traffic is None else traffic.added_to(problem)
            bin = home_planner(job.placement).plan(posed, settings.seed).bin[: problem.groups]
        except PlanningError as error:
            # The groups of other jobs, and of other operators, move nevertheless.
            memory.worthwhile = 0
            return _decided(head, (), now, now, f"no plan, so groups stay: {error}")
        then = _quality(problem, traffic, bin)
        moved = np.flatnonzero(bin != problem.current).tolist()
        gains = bool(moved) and max(now[0] - then[0], then[1] - now[1]) >= settings.least_gain
        memory.worthwhile = memory.worthwhile + 1 if gains else 0
        if not gains:
            return _decided(head, (), now, then, "no plan gains enough, so groups stay.")
        moves = self._mini_migrations(operator, bin, moved)
        if memory.worthwhile < settings.patience:
            why = f"a plan must gain in {settings.patience} periods in a row before groups move."
            return _decided(head, (), now, then, why, moves)
        if job.dry_run:
            listed = ", ".join(f"{group} to executor {bin[group]}" for group in moved)
            return _decided(head, (), now, then, f"a dry run: these groups would move: {listed}.", moves)
        memory.worthwhile = 0
        return _decided(head, moves, now, then, "groups move for balance, or for less traffic between workers.")

    def _mini_migrations(self, operator: _Operator, bin: npt.NDArray[np.int64], moved: Sequence[int]) -> GroupMoves:
        homes = [one.home for one in operator.executors]
        self._pause()
        transfers = [
            GroupTransfer(
                group, int(bin[group]), homes[operator.current[group]], homes[bin[group]], int(operator.nbytes[group])
            )
            for group in in_turns(moved, self._pause)
        ]
        settings = self.settings
        # What moves while rows wait takes no longer than the rest of the pause.
        share = self.measured.paused_share(PROGRESSIVE)
        most = settings.handover * settings.transfer / share if share > 0 else math.inf
        minis = mini_migrations(transfers, settings.max_moves, most, self._pause)
        return tuple({one.group: one.executor for one in mini} for mini in minis)

    def _rest(self, problem: PlacementProblem, now: tuple[float, float], operator: _Operator, memory: _Memory) -> str:
        """Return why groups stay without a plan, as a sentence for people; empty if there should be one."""
        settings = self.settings
        if problem.mean < settings.least_use:
            return "the executors are hardly busy, so groups stay."
        if now[0] < settings.least_gain and not (operator.collocates and 1 - now[1] >= settings.least_gain):
            return "the executors are loaded evenly enough, so groups stay."
        if operator.snapshot.now - memory.moved_at < settings.cooldown:
            return f"groups have moved within the last {settings.cooldown:g} s, so they stay."
        return ""

    def _weighed(self, decision: GroupDecision, operator: _Operator, strategy: str) -> GroupDecision:
        """Return a decision with its strategy, and what both strategies cost."""
        executors, current, planned = operator.executors, operator.current, decision.moves or decision.deferred
        load, nbytes = operator.load, operator.nbytes
        loads = np.bincount(current, load, len(executors))
        drains = np.array([one.queue / one.service_rate if one.service_rate else 0.0 for one in executors])
        rows = sum(max(one.arrival_rate, one.throughput) for one in executors)
        share = load / load.sum()
        minis = []
        for move in planned:
            self._pause()
            groups = [*move]
            # Only rows of groups that leave are processed before: they are first.
            leaving = np.bincount(current[groups], load[groups], len(executors)) / np.maximum(loads, TINY_LOAD)
            drain = float((drains * leaving).max())
            minis.append(GroupsMoving(rows * float(share[groups].sum()), float(nbytes[groups].sum()), drain))
        costs = group_costs(minis, rows, float(drains.max()), loads.tolist(), self.measured)
        if strategy == AUTO:
            strategy = min(costs, key=lambda cost: cost.waiting).strategy
        expected = tuple(minis)
        if strategy == SYNCHRONISED:
            # Each of several pauses would cost as much as one.
            planned = ({group: to for move in planned for group, to in move.items()},)
            expected = (GroupsMoving(rows, costs[0].moved_bytes, float(drains.max())),)
        weighed = replace(
            decision,
            strategy=strategy,
            expected=expected,
            costs=costs,
            paused_bytes=self.measured.paused_share(strategy) * costs[0].moved_bytes,
        )
        return replace(weighed, moves=planned) if decision.moves else replace(weighed, deferred=planned)


def _decided(
    head: tuple[str, int, str],
    moves: GroupMoves,
    now: tuple[float, float],
    then: tuple[float, float],
    reason: str,
    deferred: GroupMoves = (),
) -> GroupDecision:
    return GroupDecision(
        *head, moves, reason, now[0], then[0], collocation=now[1], planned_collocation=then[1], deferred=deferred
    )


def _after(current: npt.NDArray[np.int64], moves: GroupMoves) -> npt.NDArray[np.int64]:
    """Return the owners of groups after some moves."""
    after = current.copy()
    for move in moves:
        after[[*move]] = [*move.values()]
    return after


def _quality(problem: PlacementProblem, traffic: NodeTraffic | None, bin: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return the load distance as a share of the mean, and the share of the traffic within nodes."""
    distance = load_distance(problem, bin) / problem.mean if problem.mean > 0 else 0.0
    return distance, 1.0 if traffic is None else traffic.within(bin)


def _mean_loads(
    snapshots: Sequence[Snapshot], job: JobSnapshot, operator: str, groups: int, pause: Callable[[], None]
) -> tuple[Floats | None, Floats]:
    """Return the cores that each group needs, and the bytes of its state; None unless all executors are measured.

    Loads are of what has arrived in the last second, part of it perhaps at a former owner.
    """
    loads: list[Floats] = []
    nbytes = np.zeros(groups)
    for snapshot in snapshots:
        parts = [
            one
            for other in snapshot.jobs
            if job_key(other) == job_key(job)
            for one in in_turns(other.executors, pause)
            if one.executor.component == operator
        ]
        load, sizes = np.zeros(groups), np.zeros(groups)
        for one in in_turns(parts, pause):
            if one.shard_load is None or len(one.shard_load) != groups:
                break
            load += one.shard_load
            sizes += 0.0 if one.shard_bytes is None else one.shard_bytes
        else:
            if parts:
                loads.append(load)
                nbytes = sizes
    return (np.mean(loads, axis=0) if loads else None), nbytes

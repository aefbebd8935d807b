"""The placement loop: decides, more slowly than the loop of cores, which homes of running jobs move.

Goal
    Homes are balanced and near what feeds them, retiring nodes are emptied, and little state moves.
Method
    Snapshots are collected for one period. Their mean loads and traffic make a placement problem, which the job's
    planner solves within a budget of moves and bytes; scaling, balance and collocation are decided together, by ALBIC's
    loop. Homes move only if a plan gains enough in several periods in a row; retiring nodes are emptied at once. Each
    move is made by the strategy that lets rows wait least for as long as the placement is expected to last, which is as
    long as the present one has lasted. While hardly anything changes after a plan without gain, no other is made for
    some periods.
Not done
    Carrying the moves out, and weighing one job's gain against another's: each job is planned with the others fixed.

Notes
-----
ALBIC, section 4.1 (Algorithm 1) and 3 (capacities inferred at runtime).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.control.placement.decision import PlacementDecision
from dask_elastic.control.placement.executors import PlacedExecutors, placed_executors
from dask_elastic.control.placement.fruitless_plan import FruitlessPlan
from dask_elastic.control.placement.home_moves import home_moves
from dask_elastic.control.placement.measured_loads import JobLoads, PeriodLoads, served_rates
from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.control.placement.planners import Consecutive, planner_of_job
from dask_elastic.control.placement.purpose import Purpose
from dask_elastic.control.placement.scaling import ReportedScaling
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.reconfiguration import Reconfigurer
from dask_elastic.control.scaling import Scaling, TargetUtilisation
from dask_elastic.control.steady_time import SteadyTime
from dask_elastic.meters.node_speeds import NodeSpeeds
from dask_elastic.planning.placement.problem import SLACK, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import collocation, load_distance
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import HomeMove
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

KEPT_COUNTS = 1_000
"""Numbers of nodes from which the transition matrix of MTM is made."""


_UNCHANGED = "hardly anything has changed since a plan that gained too little, so homes stay."


@dataclass(eq=False)
class _Memory:
    """What the loop remembers of one job."""

    placement: str
    reconfigurer: Reconfigurer
    reported: ReportedScaling | None
    history: deque[JobLoads]
    since: float
    places: dict[ExecutorId, tuple[str, bool]] = field(default_factory=dict)
    moved_at: dict[ExecutorId, float] = field(default_factory=dict)
    worthwhile: int = 0
    fruitless: FruitlessPlan | None = None


class PlacementLoop:
    """Decides which homes move. The same snapshots give the same decisions.

    Parameters
    ----------
    settings : PlacementSettings, optional
        The settings; the defaults if not given.
    placement : str, optional
        The placement for all jobs; if not given, the one that each job names. Jobs with ``"spread"`` are left as they
        are, and so are jobs of other paradigms than the executor-centric one.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Attributes
    ----------
    node_counts : list of int
        The numbers of nodes that stayed in earlier periods, oldest first; those of the newest `KEPT_COUNTS`.
    rates : MoveRates or None
        Those from which pauses are predicted; by default those of the settings.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, NodeSnapshot
    >>> def busy(index, rate):
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, arrival_rate=rate, service_rate=500.0)
    >>> job = JobSnapshot("words", 1, (busy(0, 400.0), busy(1, 400.0)), placement="flux")
    >>> nodes = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
    >>> loop = PlacementLoop(PlacementSettings(patience=1))
    >>> [decision] = loop.decide(Snapshot(0.0, nodes, (job,)))
    >>> [(str(move.executor), move.source, move.target, move.gain) for move in decision.moves]
    [('count[0]', 0, 1, 1.0)]
    """

    def __init__(
        self,
        settings: PlacementSettings | None = None,
        placement: str | None = None,
        pause: Callable[[], None] = no_pause,
    ):
        self.settings = settings or PlacementSettings()
        self.placement = placement
        self.node_counts: list[int] = []
        self.rates: MoveRates | None = None
        self._pause = pause
        self._speeds = NodeSpeeds(pause=pause)
        self._jobs: dict[JobKey, _Memory] = {}
        self._period = PeriodLoads(self.settings.period, pause)
        self._time = SteadyTime()

    def tick(self, snapshot: Snapshot) -> tuple[PlacementDecision, ...]:
        """Take a snapshot; decide if a period is over.

        Parameters
        ----------
        snapshot : Snapshot
            The newest one.

        Returns
        -------
        tuple of PlacementDecision
            One for each job that is placed by a planner; none between two periods.
        """
        seen = self._observed(snapshot)
        if self._period.seconds < self.settings.period:
            return ()
        return self._decisions(seen, snapshot.now)

    def decide(self, snapshot: Snapshot) -> tuple[PlacementDecision, ...]:
        """Take a snapshot and decide, whether or not a period is over.

        Parameters
        ----------
        snapshot : Snapshot
            The newest one.

        Returns
        -------
        tuple of PlacementDecision
            One for each job that is placed by a planner.
        """
        return self._decisions(self._observed(snapshot), snapshot.now)

    def observe(self, snapshot: Snapshot) -> None:
        """Take a snapshot without deciding.

        Parameters
        ----------
        snapshot : Snapshot
            The newest one.
        """
        self._observed(snapshot)

    def _observed(self, snapshot: Snapshot) -> Snapshot:
        """Take a snapshot; return it at its steady time."""
        seen = self._time.seen(snapshot)
        self._period.add(seen)
        self._note_homes(seen)
        return seen

    def _decisions(self, snapshot: Snapshot, now: float) -> tuple[PlacementDecision, ...]:
        """Return the decisions on a snapshot at its steady time, as made at the time of the clock."""
        loads, self._period = self._period.means(), PeriodLoads(self.settings.period, self._pause)
        self._speeds.observe(served_rates(snapshot, self._pause))
        self.node_counts.append(sum(node.cores > 0 and not node.retiring for node in snapshot.nodes))
        del self.node_counts[:-KEPT_COUNTS]
        self._jobs = {key: memory for key, memory in self._jobs.items() if key in loads}
        found = []
        for job in snapshot.jobs:
            if job_key(job) in self._jobs:
                found.append(replace(self._decision(snapshot, job, loads), time=now))
                # Of earlier periods planners read loads only; garbage collection would visit their traffic.
                self._jobs[job_key(job)].history.append(replace(loads[job_key(job)], traffic=[]))
        return tuple(found)

    def _note_homes(self, snapshot: Snapshot) -> None:
        """Note which homes have moved, or have their cores elsewhere, however that came about."""
        for job in snapshot.jobs:
            name = self.placement or job.placement
            if name == SPREAD or job.paradigm != "executor-centric":
                continue
            memory = self._jobs.get(job_key(job))
            if memory is None or memory.placement != name:
                memory = self._jobs[job_key(job)] = self._memory(name, snapshot.now)
            self._pause()
            names, places = [one.executor for one in job.executors], _places(job, snapshot, self._pause)
            if names == [*memory.places] and places == [*memory.places.values()]:
                continue
            for executor, place in in_turns(zip(names, places, strict=True), self._pause):
                if memory.places.get(executor, place) != place:
                    memory.moved_at[executor] = memory.since = snapshot.now
                memory.places[executor] = place

    def _memory(self, placement: str, now: float) -> _Memory:
        chosen = planner_of_job(placement, self.node_counts, self.settings)
        # The planners of consecutive executors take the number of nodes as it is.
        reported = None if self.settings.scales and not isinstance(chosen, Consecutive) else ReportedScaling()
        reconfigurer = Reconfigurer(chosen, reported or TargetUtilisation(), self.settings.seed)
        return _Memory(placement, reconfigurer, reported, deque(maxlen=self.settings.windows), now)

    def _decision(self, snapshot: Snapshot, job: JobSnapshot, loads: Mapping[JobKey, JobLoads]) -> PlacementDecision:
        memory = self._jobs[job_key(job)]
        head = (snapshot.now, *job_key(job), memory.placement)
        recent = snapshot.now - self.settings.cooldown
        held = frozenset(executor for executor, at in memory.moved_at.items() if at > recent)
        try:
            placed = placed_executors(
                snapshot, job, loads, self.settings, self._speeds.speeds(), tuple(memory.history), held, self._pause
            )
            seen = placed.problem
            if memory.reported is not None:
                memory.reported.note_nodes(placed.addresses)
            skips = self._skips(memory, placed)
            placed, placement, scaling = self._skipped(memory, placed) if skips else self._planned(memory, placed)
        except PlanningError as error:
            memory.worthwhile = 0
            return PlacementDecision(*head, (), f"no plan: {error}")
        problem = placed.problem
        self._pause()
        chosen = home_moves(
            placed,
            placement,
            self.settings,
            self._rates(snapshot),
            Purpose.of(memory.placement),
            snapshot.now - memory.since,
        )
        moves, now = chosen.moves, _quality(problem, problem.current)
        then = _distance(problem, chosen.distance), collocation(problem, chosen.bin)
        self._pause()
        leaving = {placed.nodes[bin] for bin in np.flatnonzero(problem.draining).tolist()}
        urgent = tuple(move for move in moves if move.source in leaving)
        least = self.settings.least_gain
        used = problem.mean >= self.settings.least_use
        gains = used and (now[0] - then[0] >= least or then[1] - now[1] >= least)
        if isinstance(memory.reconfigurer.planner, Consecutive):
            # They move only what they must, and a part of a plan would leave executors that are not consecutive.
            gains, urgent = bool(moves), moves if urgent else ()
        memory.worthwhile = memory.worthwhile + 1 if moves and gains else 0
        if gains or urgent:
            memory.fruitless = None
        elif not skips:
            memory.fruitless = FruitlessPlan.of(seen, placed.addresses, *now)
        made = moves if memory.worthwhile >= self.settings.patience else urgent
        deferred = () if made is moves else tuple(move for move in moves if move.source not in leaving)
        self._pause()
        held_bins = set(problem.current[: len(placed.executors)].tolist())
        return PlacementDecision(
            *head,
            () if job.dry_run else made,
            _UNCHANGED if skips else _reason(made, deferred, gains, bool(chosen.kept), self.settings, job.dry_run),
            deferred=moves if job.dry_run else deferred,
            kept=chosen.kept,
            bottleneck=placed.bottleneck,
            distance=now[0],
            planned_distance=then[0],
            collocation=now[1],
            planned_collocation=then[1],
            add=scaling.add,
            remove=tuple(placed.addresses[bin] for bin in scaling.remove),
            release=tuple(
                address
                for bin, address in enumerate(placed.addresses)
                if problem.draining[bin] and bin not in held_bins
            ),
        )

    def _rates(self, snapshot: Snapshot) -> MoveRates:
        """Return the rates of moves, with the round trips that are measured now."""
        rates = self.rates or MoveRates(self.settings.handover, self.settings.transfer, hop=self.settings.hop)
        hops = [one.hop for job in snapshot.jobs for one in job.executors if one.hop is not None]
        self._pause()
        return replace(rates, hop=sum(hops) / len(hops)) if hops else rates

    def _skips(self, memory: _Memory, placed: PlacedExecutors) -> bool:
        """Return whether another plan would gain as little as the last one."""
        last = memory.fruitless
        # Where nodes are marked for removal here, their removal takes several plans.
        if last is None or memory.reported is None:
            return False
        problem = placed.problem
        return last.covers(problem, placed.addresses, *_quality(problem, problem.current), self.settings.least_gain)

    def _skipped(self, memory: _Memory, placed: PlacedExecutors) -> tuple[PlacedExecutors, Placement, Scaling]:
        """Return the homes as they are, and the nodes to add and remove."""
        assert memory.fruitless is not None, "a plan was fruitless"
        assert memory.reported is not None, "nodes are not removed here"
        memory.fruitless = memory.fruitless.later()
        problem = placed.problem
        stay = problem.placement(problem.current)
        memory.reported.decide(problem, stay, np.zeros(problem.bins, dtype=np.bool_), Scaling())
        return placed, stay, memory.reported.wanted

    def _planned(self, memory: _Memory, placed: PlacedExecutors) -> tuple[PlacedExecutors, Placement, Scaling]:
        """Return the problem with the nodes that are to be emptied, its solution, and the nodes to add and remove."""
        planning, problem = memory.reconfigurer.planner, placed.problem
        if isinstance(planning, Consecutive) and memory.reported is not None:
            # Budgets and pins would leave executors that are not consecutive.
            pinned = problem.pinned & (np.arange(problem.groups) >= len(placed.executors))
            problem = replace(problem, max_moves=None, max_cost=None, pinned=pinned)
            planning.own = len(placed.executors)
            placement = planning.plan(problem)
            memory.reported.decide(problem, placement, np.zeros(problem.bins, dtype=np.bool_), Scaling())
            return replace(placed, problem=problem), placement, memory.reported.wanted
        proposal = memory.reconfigurer.begin(problem, placed.addresses)
        planned = memory.reconfigurer.finish(proposal)
        removed = tuple(placed.addresses.index(str(address)) for address in proposal.remove)
        scaling = Scaling(proposal.add, removed) if memory.reported is None else memory.reported.wanted
        return replace(placed, problem=planned.problem), planned.placement, scaling


def _quality(problem: PlacementProblem, bin: np.ndarray) -> tuple[float, float]:
    """Return the load distance as a share of the mean, without errors of rounding, and the collocation."""
    return _distance(problem, load_distance(problem, bin)), collocation(problem, bin)


def _distance(problem: PlacementProblem, distance: float) -> float:
    """Return a load distance as a share of the mean, without errors of rounding."""
    share = distance / problem.mean if problem.mean > 0 else 0.0
    return share if share > SLACK else 0.0


def _places(job: JobSnapshot, snapshot: Snapshot, pause: Callable[[], None]) -> list[tuple[str, bool]]:
    """Return the address of the home of each executor, and whether all its cores are elsewhere."""
    addresses = [node.address for node in snapshot.nodes]
    executors = in_turns(job.executors, pause)
    return [(addresses[one.home], one.home not in one.cores and bool(one.cores)) for one in executors]


def _reason(
    made: tuple[HomeMove, ...],
    deferred: tuple[HomeMove, ...],
    gains: bool,
    kept: bool,
    settings: PlacementSettings,
    dry_run: bool,
) -> str:
    """Return why homes move, or why they do not."""
    if dry_run and (made or deferred):
        return "homes would move, but this is a dry run."
    if made and deferred:
        return "retiring nodes are emptied first."
    if made:
        return "homes move for balance, for less traffic between nodes, or away from retiring nodes."
    if deferred and gains:
        return f"a plan must gain in {settings.patience} periods in a row before homes move."
    if deferred:
        return f"the plan gains less than {settings.least_gain:.0%}, or nodes are nearly idle, so homes stay."
    if kept:
        return "rows would wait longer for the moves of the plan than they do now, so homes stay."
    return "homes are where the planner wants them, or may not move yet."

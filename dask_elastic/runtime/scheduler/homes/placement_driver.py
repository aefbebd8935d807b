"""Homes follow load and traffic: runs the placement loop beside the control loop, and carries its moves out.

Notes
-----
Decision 85. The loop decides in a thread of its own, on the snapshots that the control loop has kept. Homes of one job
move one after the other; the moves of a plan that no longer fits, or that fail, are planned again in the next period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dask_elastic.control.placement.move_rates import MeasuredMoves
from dask_elastic.control.placement.move_reason import move_reason
from dask_elastic.planning.turns import in_turns
from dask_elastic.runtime.protocol.remote_errors import text_of
from dask_elastic.runtime.scheduler.control.periodic_planning import FAILURES, PeriodicPlanning
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.homes.home_moves import HomeMoves, hindrance
from dask_elastic.runtime.scheduler.homes.retirement import Retirement
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import LABELLED, HomeChange, HomeForecast, HomeMove
from dask_elastic.vocab.snapshot import Snapshot

if TYPE_CHECKING:
    from dask_elastic.control.placement.decision import PlacementDecision
    from dask_elastic.control.placement.loop import PlacementLoop

logger = logging.getLogger("dask_elastic.scheduler")


@dataclass(frozen=True)
class PlannedHome:
    """A move of a home, or of shards instead, that is to be carried out, with workers by their addresses.

    Parameters
    ----------
    change : HomeChange
        The move as it is expected.
    forecast : HomeForecast
        The same, with the reasons of the planner.
    reason : str
        Why, as a sentence for people.
    """

    change: HomeChange
    forecast: HomeForecast
    reason: str


class _Told(NamedTuple):
    """What is kept once among the decisions about a job, as long as it stays the same."""

    generation: int
    about: str
    places: list[tuple[ExecutorId, str, str]]


@dataclass(frozen=True)
class PlannedDecision:
    """A decision with its moves as they are carried out or shown; of many, their texts take milliseconds.

    Parameters
    ----------
    decision : PlacementDecision
        The decision.
    moves : list of PlannedHome
        Its moves, or those that it defers.
    kept : list of PlannedHome
        Those that are not made, because rows would wait less if nothing moved.
    """

    decision: PlacementDecision
    moves: list[PlannedHome]
    kept: list[PlannedHome]


class PlacementDriver(PeriodicPlanning):
    """Moves homes as the planners of jobs decide, while there are jobs with planners.

    Parameters
    ----------
    moves : HomeMoves
        Carries moves out.
    retirement : Retirement
        Empties workers: no home of a plan moves meanwhile.
    control : ControlDriver
        Has the snapshots and the settings, and keeps the decisions.
    """

    def __init__(self, moves: HomeMoves, retirement: Retirement, control: ControlDriver):
        super().__init__("homes", moves.jobs, control)
        self.moves = moves
        self.retirement = retirement
        self._loop: PlacementLoop | None = None
        self._measured = MeasuredMoves(self.settings)
        # By job; those of jobs that have ended are dropped.
        self._told: dict[str, _Told] = {}
        self._pause = ShortTurns()

    def note_moves(self, changes: tuple[HomeChange, ...]) -> None:
        """Learn from moves that were carried out, for a planner or by command."""
        for change in changes:
            self._measured.observe(change.moved_bytes, change.paused_bytes, change.pause)

    def places(self, record: JobRecord) -> bool:
        """Return whether homes of a job move."""
        return record.elastic

    # one period

    async def period(self, pool: ThreadPoolExecutor) -> None:
        """Decide on the snapshots since the last period, and begin to carry the decisions out."""
        snapshots, placed = self.fresh(), {record.name for record in self.placed()}
        self._told = {job: told for job, told in self._told.items() if job in placed}
        if not snapshots or not placed:
            # While all jobs are idle, the control loop takes no snapshots.
            return
        decisions = await asyncio.get_running_loop().run_in_executor(pool, self._decide, snapshots)
        for decision in decisions:
            await asyncio.sleep(0)
            self._act(decision)

    def _decide(self, snapshots: list[Snapshot]) -> list[PlannedDecision]:
        """Return the decisions; runs in a thread of its own."""
        with responsive():
            if self._loop is None:
                # SciPy takes long to import, and clusters without planners do not need it.
                from dask_elastic.control.placement.loop import PlacementLoop

                self._loop = PlacementLoop(self.settings, pause=self._pause)
            with self.timed():
                self._loop.rates = self._measured.rates()
                for snapshot in snapshots[:-1]:
                    self._loop.observe(snapshot)
                decisions = self._loop.decide(snapshots[-1])
                return [self._planned(decision, snapshots[-1]) for decision in decisions]

    def _planned(self, decision: PlacementDecision, snapshot: Snapshot) -> PlannedDecision:
        """Return a decision with its moves as they are carried out or shown."""

        def planned(moves: Iterable[HomeMove]) -> list[PlannedHome]:
            return [_planned(one, decision, snapshot) for one in in_turns(moves, self._pause)]

        return PlannedDecision(decision, planned(decision.moves or decision.deferred), planned(decision.kept))

    def _act(self, made: PlannedDecision) -> None:
        """Begin to carry a decision out, or note why nothing is changed."""
        decision, planned, stay = made.decision, made.moves, made.kept
        record = self.jobs.get(decision.job)
        if record is None or not record.live or not record.runs(decision.generation):
            return
        if decision.moves:
            self.begin(record.name, lambda: self._carry_out(record, planned, decision.generation))
        elif record.spec.options.dry_run and planned:
            self._tell(record, planned, f"Placement {decision.placement!r}: {decision.reason}")
        elif stay and not planned:
            self._tell(record, stay, stay[0].reason, decision.reason)
        elif not decision.bottleneck:
            self._tell(record, [], f"Placement {decision.placement!r}: {decision.reason}")

    def _tell(self, record: JobRecord, planned: list[PlannedHome], reason: str, about: str | None = None) -> None:
        """Keep what is not carried out among the decisions, once as long as it, or what it is about, stays the same."""
        changes = tuple(one.change for one in planned)
        places = [(one.executor, one.source, one.target) for one in changes]
        said = _Told(record.spec.generation, about or reason, places)
        if self._told.get(record.name) != said:
            self._told[record.name] = said
            self.control.note_homes(record, changes, reason, applied=False)

    # carrying out

    async def _carry_out(self, record: JobRecord, planned: list[PlannedHome], generation: int) -> None:
        """Move homes one after the other; the first that cannot move ends the period."""
        for one in planned:
            try:
                if not await self._may_move(record, generation):
                    return
                await self._move(record, one)
            except FAILURES as error:
                if not record.live or not record.runs(generation):
                    return
                cause = text_of(error)
                logger.warning("job %r: %s stays: %s", record.name, one.change.executor, cause)
                self._tell(record, [one], f"{one.reason} It could not be carried out: {cause}")
                return
            self._told.pop(record.name, None)

    async def _may_move(self, record: JobRecord, generation: int) -> bool:
        """Return whether homes may move, once no other home moves."""
        await record.homes.still()
        runs = record.live and record.runs(generation) and hindrance(record) is None
        return runs and not self.retirement.active

    async def _move(self, record: JobRecord, planned: PlannedHome) -> None:
        """Move a home.

        Raises
        ------
        PlanningError
            If the plan no longer fits.
        """
        change, forecast = planned.change, planned.forecast
        home = record.nodes[record.homes.node(*change.executor)]
        if home != change.source:
            raise PlanningError(
                f"the plan no longer fits: {change.executor} is at home on {home} by now, not on {change.source}"
            )
        if change.target not in self.moves.workers:
            raise PlanningError(f"the plan no longer fits: worker {change.target} has left the cluster")
        if forecast.strategy == LABELLED:
            await self._move_shards(record, planned)
        else:
            await self.moves.move(record, change.executor, change.target, planned.reason, forecast)

    async def _move_shards(self, record: JobRecord, planned: PlannedHome) -> None:
        """Have an executor process on another worker, by cores there instead of at home; its home stays.

        Raises
        ------
        PlanningError
            If it has no cores at home by now, or the other worker has no slots for them.
        """
        change, cores = planned.change, self.moves.cores
        key = (change.executor.component, change.executor.index)
        if change.target not in record.nodes:
            raise PlanningError(f"the plan no longer fits: worker {change.target} is not part of the job")
        source, target = (record.nodes.index(address) for address in (change.source, change.target))
        before = record.cores[key]
        held = before.get(source, 0)
        if not held or cores.following(record, key, source, target) < held:
            raise PlanningError(
                f"the plan no longer fits: {change.executor} has {held} cores at home, and {change.target} not as many "
                "free slots"
            )
        after = {node: count for node, count in before.items() if node != source}
        after[target] = after.get(target, 0) + held
        await cores.change(record, key, before, after)
        made = CoreChange(record.name, record.spec.generation, change.executor, before, after, change.moved_bytes)
        self.control.note_cores(record, made, planned.reason)


def _planned(move: HomeMove, decision: PlacementDecision, snapshot: Snapshot) -> PlannedHome:
    source, target = (snapshot.nodes[node].address for node in (move.source, move.target))
    forecast = HomeForecast(
        decision.placement, move.moved_bytes, move.pause, move.gain, move.traffic, move.costs, move.strategy
    )
    change = HomeChange(move.executor, source, target, move.moved_bytes, move.pause, forecast)
    return PlannedHome(change, forecast, move_reason(forecast, decision.reason))

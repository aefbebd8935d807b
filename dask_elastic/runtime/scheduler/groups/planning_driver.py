"""Key groups follow the load: runs the planning of groups beside the control loop, and carries its moves out.

Notes
-----
Decision 89. Decisions are made in a thread of their own, on the snapshots that the control loop has kept. The
mini-migrations of a plan are carried out one after the other, each between two checkpoints, while other jobs go on;
those of a plan that fails are planned again in a later period. How long they take is what later plans choose their
strategy by (decision 96).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dask_elastic.control.keys import JobKey
from dask_elastic.runtime.protocol.remote_errors import cause_of
from dask_elastic.runtime.scheduler.control.periodic_planning import FAILURES, PeriodicPlanning
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.groups.group_moves import GroupMoves
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import MoveRefused, PlanningError
from dask_elastic.vocab.snapshot import Snapshot

if TYPE_CHECKING:
    from dask_elastic.control.placement.group_decision import GroupDecision
    from dask_elastic.control.placement.groups import GroupPlanning

logger = logging.getLogger("dask_elastic.scheduler")

Owners = dict[JobKey, dict[str, list[int]]]
Strategies = dict[JobKey, dict[str, str]]


class GroupPlanningDriver(PeriodicPlanning):
    """Moves key groups as the planners of jobs decide, while there are jobs whose groups move and that have one.

    Parameters
    ----------
    moves : GroupMoves
        Carries moves out.
    control : ControlDriver
        Has the snapshots and the settings, and keeps the decisions.
    """

    def __init__(self, moves: GroupMoves, control: ControlDriver):
        super().__init__("key groups", moves.jobs, control)
        self.moves = moves
        self._planning: GroupPlanning | None = None
        # Moves that have ended since the last period, which the newest snapshot may lack.
        self._ended: list[tuple[JobKey, EndedGroupMove]] = []
        # By job, its generation, and by operator; those of jobs that have ended are dropped.
        self._told: dict[JobKey, dict[str, str]] = {}

    def places(self, record: JobRecord) -> bool:
        """Return whether key groups of a job move."""
        return bool(record.spec.groups)

    async def period(self, pool: ThreadPoolExecutor) -> None:
        """Decide on the snapshots since the last period, and carry the decisions out."""
        snapshots, owners, strategies = self.fresh(), self._owners(), self._strategies()
        self._told = {job: told for job, told in self._told.items() if job in owners}
        if not snapshots or not owners:
            return
        ended, self._ended = self._ended, []
        loop = asyncio.get_running_loop()
        decisions = await loop.run_in_executor(pool, self._decide, ended, snapshots, owners, strategies)
        by_job: dict[str, list[GroupDecision]] = {}
        for decision in decisions:
            by_job.setdefault(decision.job, []).append(decision)
        for job, found in by_job.items():
            self.begin(job, functools.partial(self._carry_out_all, found, owners))

    async def _carry_out_all(self, decisions: list[GroupDecision], owners: Owners) -> None:
        """Carry out the decisions about one job, one after the other."""
        for decision in decisions:
            record = self.jobs.get(decision.job)
            if record is not None and record.live and record.runs(decision.generation):
                await self._carry_out(record, decision, owners[decision.job, decision.generation][decision.operator])

    def _owners(self) -> Owners:
        return {
            (record.name, record.spec.generation): {
                name: table.owners.tolist() for name, table in record.groups.tables.items()
            }
            for record in self.placed()
        }

    def _strategies(self) -> Strategies:
        return {
            (record.name, record.spec.generation): {
                name: record.spec.options.strategy(name) for name in record.groups.tables
            }
            for record in self.placed()
        }

    def _decide(
        self,
        ended: list[tuple[JobKey, EndedGroupMove]],
        snapshots: list[Snapshot],
        owners: Owners,
        strategies: Strategies,
    ) -> tuple[GroupDecision, ...]:
        """Return the decisions; runs in a thread of its own."""
        with responsive():
            if self._planning is None:
                # SciPy takes long to import, and clusters without planners do not need it.
                from dask_elastic.control.placement.groups import GroupPlanning

                self._planning = GroupPlanning(self.settings, ShortTurns())
            with self.timed():
                for snapshot in snapshots:
                    self._planning.observe(snapshot)
                for job, move in ended:
                    self._planning.moved(job, move)
                return self._planning.decide(owners, strategies)

    async def _carry_out(self, record: JobRecord, decision: GroupDecision, planned: list[int]) -> None:
        """Move groups in the mini-migrations of a decision; the first one that fails ends it."""
        placement = record.spec.options.placement
        reason = f"Placement {placement!r}: {decision.reason}"
        if not decision.moves:
            self._tell(record, decision.operator, reason)
            return
        # Imported with the planning, which has made the decision.
        from dask_elastic.control.placement.group_strategies import compared

        strategy, compares = decision.strategy, compared(decision.costs, decision.strategy)
        why = f"{reason} {_expected(decision)} {compares}"
        try:
            for moves, expected in zip(decision.moves, decision.expected, strict=True):
                if not record.live or not record.runs(decision.generation):
                    return
                groups = record.groups
                owners = groups.table(decision.operator).owners
                if other := [group for group in moves if owners[group] != planned[group]]:
                    raise PlanningError(f"the plan no longer fits: groups {other} have moved otherwise")
                await self.moves.move(record, decision.operator, moves, strategy, why, expected.drain)
                self._ended.append(((record.name, decision.generation), groups.ended[-1]))
        except FAILURES as error:
            if not record.live or not record.runs(decision.generation):
                return
            cause = cause_of(error)
            # What has got its last row refuses: the end of a stream is nothing to warn of.
            level = logging.INFO if isinstance(cause, MoveRefused) else logging.WARNING
            logger.log(level, "job %r: groups of %r stay: %s", record.name, decision.operator, cause)
            self._tell(record, decision.operator, f"{why} It could not be carried out: {cause}")
            return
        self._told.get((record.name, decision.generation), {}).pop(decision.operator, None)

    def _tell(self, record: JobRecord, operator: str, reason: str) -> None:
        """Keep why nothing is carried out among the decisions, once as long as it stays the same."""
        told = self._told.setdefault((record.name, record.spec.generation), {})
        if told.get(operator) != reason:
            told[operator] = reason
            self.control.note_homes(record, (), f"{operator!r}: {reason}", applied=False)


def _expected(decision: GroupDecision) -> str:
    """Return what a plan gains, as sentences for people."""
    found = f"Imbalance {decision.distance:.0%}, {decision.planned_distance:.0%} afterwards."
    if decision.collocation == decision.planned_collocation:
        return found
    return f"{found} Traffic within workers {decision.collocation:.0%}, {decision.planned_collocation:.0%} afterwards."

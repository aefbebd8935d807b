"""Moves of key groups between executors: checks, exclusion of checkpoints and reads, and the calls to the nodes.

Notes
-----
Decisions 86, 89 and 99. `GroupMove` says what the nodes are asked next. Until the upstream instances are asked to
switch or to pause, any error cancels the move. From then on the loss of a node ends the generation, as does an unknown
error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from dask_elastic.control.explanation.amounts import size
from dask_elastic.meters.shard_arrivals import COMPARED_SECONDS
from dask_elastic.migration.group_move import (
    CANCELLABLE,
    PROGRESSIVE,
    SYNCHRONISED,
    GroupAction,
    GroupEvent,
    GroupMove,
    GroupPhase,
)
from dask_elastic.migration.strategy import AUTO, BETWEEN_EXECUTORS
from dask_elastic.runtime.protocol import group_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.group_calls import GroupsMoved, MovedGroups
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls, unless_over
from dask_elastic.vocab.errors import ElasticError, JobEnded, MoveRefused, PlanningError

logger = logging.getLogger("dask_elastic.scheduler")

SHOWN = 4
"""Groups that a sentence for people names."""


class GroupMoves:
    """Moves key groups while jobs run, one set of groups of each job at a time.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the nodes.
    checkpoints : Checkpoints
        Takes no checkpoint during a move.
    failed : callable
        ``failed(record, operator, error)`` ends a generation in which a move has failed at an unknown point.
    moved : callable
        ``moved(record, what, reason, nbytes)`` is called after each move, with what has moved in a few words, all that
        has happened as sentences for people, and the bytes of state.
    """

    def __init__(
        self,
        jobs: JobTable,
        calls: WorkerCalls,
        checkpoints: Checkpoints,
        failed: Callable[[JobRecord, str, Exception], None],
        moved: Callable[[JobRecord, str, str, float], None],
    ):
        self.jobs = jobs
        self.calls = calls
        self.checkpoints = checkpoints
        self._failed = failed
        self._moved = moved

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [group_calls.MoveGroups.handled_by(self.move_groups)]

    async def move_groups(self, call: group_calls.MoveGroups) -> MovedGroups:
        """Move key groups to an executor, as a user requests; see `move`."""
        record = self.jobs.record(call.job)
        check_moving(record)
        strategy = record.spec.options.strategy(call.operator) if call.strategy is None else call.strategy
        if call.strategy is None and strategy == AUTO:
            # Only plans are weighed. These groups alone wait, not all rows.
            strategy = PROGRESSIVE
        moves = dict.fromkeys(call.groups, call.executor)
        return await self.move(record, call.operator, moves, strategy, "A user moved key groups.")

    async def move(
        self,
        record: JobRecord,
        operator: str,
        moves: Mapping[int, int],
        strategy: str,
        reason: str,
        drain: float | None = None,
    ) -> MovedGroups:
        """Move key groups to other executors, after the checkpoint in progress; returns when all are there.

        Parameters
        ----------
        record : JobRecord
            The job.
        operator : str
            The operator.
        moves : mapping of int to int
            The next executor of each group that moves.
        strategy : str
            One of `BETWEEN_EXECUTORS`.
        reason : str
            Why, as a sentence for people.
        drain : float, optional
            What a planner expects, see `EndedGroupMove`.

        Raises
        ------
        MoveRefused
            If the move cannot begin, or an executor has got its last row; all groups stay where they are.
        UnknownOperator
            If the job has no such operator.
        JobEnded, PlanningError
            If the job does not run, or is restarted meanwhile.
        """
        check_moving(record)
        if strategy not in BETWEEN_EXECUTORS:
            known = " or ".join(map(repr, BETWEEN_EXECUTORS))
            raise MoveRefused(f"there is no strategy {strategy!r} for key groups: choose {known}")
        generation, groups = record.spec.generation, record.groups
        move, began = groups.begin(operator, moves, strategy), time.monotonic()
        try:
            # The checkpoint in progress ends first, while state can be read: moves in a row would let none complete.
            async with record.changing[operator, -1], self.checkpoints.between(record, _gone), groups.still:
                if not record.runs(generation):
                    raise _gone(record)
                check_moving(record)
                moved = await self._carry_out(record, move)
        finally:
            groups.end()
        seconds = time.monotonic() - began
        result = MovedGroups(len(moves), moved.nbytes, moved.pause, seconds, moved.paused_bytes)
        settled = time.time() + record.spec.options.report_interval
        if strategy == SYNCHRONISED:
            # With less of what has arrived since the pause, executors seem to be loaded unevenly by chance.
            settled += COMPARED_SECONDS
        groups.note(move, result, settled, drain)
        logger.info("job %r: %s: %s", record.name, move, result)
        noun = "key group" if result.groups == 1 else "key groups"
        what = f"{result.groups} {noun} of {operator!r} moved"
        self._moved(record, what, _sentence(move, result, reason), result.nbytes)
        return result

    async def _carry_out(self, record: JobRecord, move: GroupMove[int]) -> GroupsMoved:
        """Have the nodes do what the protocol says, until the move has ended."""
        nbytes, paused_bytes, pause, reason = 0, 0, 0.0, ""
        # Workers may join meanwhile, but none of the instances is ever there.
        nodes = sorted(record.homes.needed)
        action = move.handle(GroupEvent.STARTED)
        while action is not GroupAction.CLOSE:
            if action in (GroupAction.SWITCH, GroupAction.PAUSE):
                record.groups.switched()
            move.ask(nodes)
            answers = await self._asked(record, move, nodes, _call(record, move, action))
            if errors := [answer for answer in answers if isinstance(answer, BaseException)]:
                reason = reason or text_of(errors[0])
            done = [answer for answer in answers if isinstance(answer, GroupsMoved)]
            nbytes += sum(one.nbytes for one in done)
            paused_bytes += sum(one.paused_bytes for one in done)
            pause = max(pause, *(one.pause for one in done), 0.0)
            action = self._next(record, move, action, nodes, answers)
        if move.phase is not GroupPhase.ARRIVED:
            raise MoveRefused(f"the groups of {move.operator!r} of job {record.name!r} stay where they are: {reason}")
        return GroupsMoved(nbytes, pause, paused_bytes)

    async def _asked(self, record: JobRecord, move: GroupMove[int], nodes: list[int], call: PartCall[Any]) -> list[Any]:
        """Call nodes; returns the answer or the error of each.

        Raises
        ------
        JobEnded, PlanningError
            If the generation ends meanwhile.
        """
        logger.debug("job %r: %s: %s", record.name, move, call.operation)
        calls = (self.calls.of_home(record, record.nodes[node], call) for node in nodes)
        answers: list[Any] = await unless_over(record, _each(calls), _gone)
        if not record.live or not record.runs(call.generation):
            raise _gone(record)
        return answers

    def _next(
        self, record: JobRecord, move: GroupMove[int], action: GroupAction, nodes: list[int], answers: list[Any]
    ) -> GroupAction:
        """Return what to ask next; raises the error of a node if the move cannot be cancelled."""
        if action is GroupAction.CANCEL:
            # What a lost node still holds ends with the generation.
            return move.handle(GroupEvent.ALL_ANSWERED)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if errors and action not in CANCELLABLE:
            move.handle(GroupEvent.LOST)
            self._failed(record, move.operator, errors[0])
            raise errors[0]
        if any(not isinstance(error, Relayed) for error in errors):
            return move.handle(GroupEvent.LOST)
        asked: GroupAction | None = None
        for node, answer in zip(nodes, answers, strict=True):
            asked = move.answered(node, refuses=isinstance(answer, Exception))
        assert asked is not None, "all nodes have answered"
        return asked


async def _each(calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def _call(record: JobRecord, move: GroupMove[int], action: GroupAction) -> PartCall[Any]:
    which = (*record.generation_id, move.operator, move.version)
    executors = dict(move.executors)
    match action:
        case GroupAction.COPY:
            return group_calls.CopyGroups(*which, executors)
        case GroupAction.HOLD:
            return group_calls.HoldGroups(*which, executors, move.strategy == SYNCHRONISED)
        case GroupAction.SWITCH | GroupAction.PAUSE:
            return group_calls.SwitchGroups(*which, executors, action is GroupAction.PAUSE)
        case GroupAction.MOVE:
            return group_calls.GiveGroups(*which)
        case GroupAction.RESUME:
            return group_calls.ResumeGroups(*which)
        case GroupAction.CANCEL:
            return group_calls.ForgetGroups(*which)
    raise AssertionError(f"{action} asks nodes for nothing")


def _sentence(move: GroupMove[int], moved: MovedGroups, reason: str) -> str:
    listed = ", ".join(f"{group} to executor {to}" for group, to in list(move.executors.items())[:SHOWN])
    more = f" and {len(move.executors) - SHOWN} more" if len(move.executors) > SHOWN else ""
    return (
        f"{reason} Key groups of {move.operator!r} have moved ({move.strategy}) with {size(moved.nbytes)} of state, "
        f"{listed}{more}; rows of a group waited for {1_000 * moved.pause:.0f} ms at most."
    )


def _check_paradigm(record: JobRecord) -> None:
    paradigm = record.spec.options.paradigm
    if paradigm != RESOURCE:
        raise MoveRefused(
            f"job {record.name!r} has the paradigm {paradigm!r}: its key groups do not move. Submit it with "
            f"paradigm={RESOURCE!r}."
        )


def check_moving(record: JobRecord) -> None:
    """Raise if no groups of a job move at present."""
    name = f"job {record.name!r}"
    if not record.live:
        raise JobEnded(f"{name} has {record.status.value}: its key groups do not move any more")
    _check_paradigm(record)
    if record.status is not Status.RUNNING or record.halted or record.finishing:
        status = "finishing" if record.finishing else record.status.value
        raise MoveRefused(f"{name} is {status}: key groups move only while it is running")
    if record.checkpoints is not None and (record.checkpoints.stopping or record.checkpoints.held):
        raise MoveRefused(f"{name} is being stopped with a savepoint: its key groups do not move any more")
    if record.checkpoints is not None and record.checkpoints.leaving:
        raise MoveRefused(f"{name} is about to restart without workers that are to leave: move key groups after that")


def _gone(record: JobRecord) -> ElasticError:
    if not record.live:
        return JobEnded(f"job {record.name!r} has {record.status.value} while key groups moved")
    return PlanningError(
        f"job {record.name!r} was restarted while key groups moved: look where they are, then try again"
    )

"""Which executor owns each key group in one generation of a job, and the move in progress."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping

from dask_elastic.migration.group_move import GroupMove
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.group_calls import MovedGroups
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import MoveRefused, UnknownOperator

KEPT = 16
"""Newest moves that snapshots have: more than end between two snapshots."""


class JobGroups:
    """The tables of key groups of one generation of a job; none in a job whose groups do not move.

    Parameters
    ----------
    spec : JobSpec
        The generation's spec, which has the first tables.

    Attributes
    ----------
    moving : GroupMove or None
        The move in progress; the nodes answer.
    still : asyncio.Lock
        Held while groups move, and while the state of an operator is read: a group on its way is at no executor.
    ended : deque of EndedGroupMove
        The newest moves, oldest first.
    """

    def __init__(self, spec: JobSpec):
        self._job = spec.job
        self._tables = {name: GroupTable.of_owners(owners, spec.homes[name]) for name, owners in spec.groups.items()}
        # A move that is cancelled uses a version too, so that nothing of it is taken for a part of the next one.
        self._versions: Counter[str] = Counter()
        self.moving: GroupMove[int] | None = None
        self.still = asyncio.Lock()
        self.ended: deque[EndedGroupMove] = deque(maxlen=KEPT)

    def table(self, operator: str) -> GroupTable:
        """Return the table of an operator; nodes get it later.

        Raises
        ------
        UnknownOperator
            If there is no such operator.
        """
        found = self._tables.get(operator)
        if found is None:
            raise UnknownOperator(
                f"job {self._job!r} has no operator {operator!r} with key groups: choose from {[*self._tables]}"
            )
        return found

    @property
    def tables(self) -> Mapping[str, GroupTable]:
        """The table of each operator."""
        return self._tables

    def begin(self, operator: str, moves: Mapping[int, int], strategy: str) -> GroupMove[int]:
        """Note that a move is about to begin.

        Raises
        ------
        MoveRefused
            If one is in progress, or the table refuses it.
        UnknownOperator
            If there is no such operator.
        """
        if self.moving is not None:
            raise MoveRefused(f"a {self.moving} is in progress: one move of a job at a time. Try again later.")
        table = self.table(operator)
        try:
            table.check(moves)
        except MoveRefused as error:
            raise MoveRefused(f"operator {operator!r} of job {self._job!r}: {error}") from error
        self._versions[operator] += 1
        before = {group: int(table.owners[group]) for group in moves}
        self.moving = GroupMove(operator, self._versions[operator], dict(moves), before, strategy)
        return self.moving

    def switched(self) -> None:
        """Note that the upstream instances are about to be asked to use the next table."""
        move = self.moving
        assert move is not None, "a move is in progress"
        self._tables[move.operator] = self.table(move.operator).moved(move.executors, version=move.version)

    def end(self) -> None:
        """End the move in progress."""
        self.moving = None

    def note(
        self, move: GroupMove[int], moved: MovedGroups, settled: float, drain: float | None = None
    ) -> EndedGroupMove:
        """Note what a move took that has ended; see `EndedGroupMove`."""
        number = self.ended[-1].number + 1 if self.ended else 1
        taken = moved.groups, moved.nbytes, moved.paused_bytes, moved.pause, moved.seconds
        ended = EndedGroupMove(number, move.operator, move.strategy, *taken, settled, drain)
        self.ended.append(ended)
        return ended

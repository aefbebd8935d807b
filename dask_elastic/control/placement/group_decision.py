"""The decision about the key groups of one operator: which move, how, and what this costs and gains."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.control.placement.group_strategies import GroupsMoving
from dask_elastic.migration.group_move import PROGRESSIVE
from dask_elastic.vocab.plan import StrategyCost

GroupMoves = tuple[dict[int, int], ...]
"""Mini-migrations in their order: the next executor of each group."""


@dataclass(frozen=True)
class GroupDecision:
    """What was decided about the key groups of one operator.

    Parameters
    ----------
    job : str
        The name of the job.
    generation : int
        Its generation.
    operator : str
        The operator.
    moves : tuple of dict of int to int
        The mini-migrations in their order, one if all instances pause: the next executor of each group. Empty if
        `deferred` is given.
    reason : str
        Why, as a sentence for people.
    distance, planned_distance : float
        How far the most loaded executor is from the mean, as a share of it, now and afterwards.
    strategy : {"progressive", "synchronised"}
        How the groups move.
    collocation, planned_collocation : float
        The share of the traffic of the groups that stays on its node, now and afterwards; 1 if none is measured, or
        the planner does not read it.
    expected : tuple of GroupsMoving
        What is expected of each of the moves.
    costs : tuple of StrategyCost
        What each strategy costs; empty without moves.
    deferred : tuple of dict of int to int
        Moves that are planned but not made yet, as the reason says.
    paused_bytes : float
        Bytes of state that are expected to move while rows wait.
    """

    job: str
    generation: int
    operator: str
    moves: GroupMoves
    reason: str
    distance: float
    planned_distance: float
    strategy: str = PROGRESSIVE
    expected: tuple[GroupsMoving, ...] = ()
    costs: tuple[StrategyCost, ...] = ()
    collocation: float = 1.0
    planned_collocation: float = 1.0
    deferred: GroupMoves = ()
    paused_bytes: float = 0.0

    @property
    def moved_bytes(self) -> float:
        """Bytes of state that the planned moves take to another executor."""
        return self._chosen.moved_bytes if self.costs else 0.0

    @property
    def pause(self) -> float:
        """The longest expected pause of a group, in seconds; 0 without moves."""
        return self._chosen.pause if self.costs else 0.0

    @property
    def _chosen(self) -> StrategyCost:
        return next(cost for cost in self.costs if cost.strategy == self.strategy)

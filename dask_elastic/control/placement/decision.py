"""The decision about the homes of one job: moves, and what they cost and gain."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.plan import HomeMove


@dataclass(frozen=True)
class PlacementDecision:
    """What the placement loop decides about the homes of one job.

    Parameters
    ----------
    time : float
        The time of the decision, in seconds.
    job : str
        The name of the job.
    generation : int
        The generation of the job.
    placement : str
        The name of the placement that decided.
    moves : tuple of HomeMove
        The moves, of homes or of shards where the home stays, in the order in which they are to be carried out; empty
        if `deferred` is given.
    reason : str
        Why homes move, or why they do not, as a sentence for people.
    deferred : tuple of HomeMove
        Moves that are planned but not made yet, as the reason says.
    bottleneck : str
        The resource that is balanced: the most used one.
    distance, planned_distance : float
        The load distance now and after the moves, as a share of the mean load of a node.
    collocation, planned_collocation : float
        The part of the traffic that stays within nodes, now and after the moves.
    add : int
        Nodes that the load needs in addition.
    remove : tuple of str
        Nodes that it does not need, by address.
    release : tuple of str
        Retiring nodes that are no home of the job any more, by address.
    kept : tuple of HomeMove
        Moves of the plan that are not made, because rows wait less if nothing moves.
    """

    time: float
    job: str
    generation: int
    placement: str
    moves: tuple[HomeMove, ...]
    reason: str
    deferred: tuple[HomeMove, ...] = ()
    bottleneck: str = ""
    distance: float = 0.0
    planned_distance: float = 0.0
    collocation: float = 1.0
    planned_collocation: float = 1.0
    add: int = 0
    remove: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    kept: tuple[HomeMove, ...] = ()

    @property
    def moved_bytes(self) -> float:
        """Bytes of state that the moves take to another node."""
        return sum(move.moved_bytes for move in self.moves)

    @property
    def pause(self) -> float:
        """The longest expected pause of an executor, in seconds; 0 without moves."""
        return max((move.pause for move in self.moves), default=0.0)

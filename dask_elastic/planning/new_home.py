"""The new home of an executor whose worker is to leave.

Goal
    As many of the executor's tasks as possible are local at its new home, and little state moves later.
Heuristic
    The node where the most of the executor's cores can be: those that it has there, and free slots. Among equal ones,
    that with the most of its cores, then with the fewest homes, then the first.
Not done
    Loads, memory and traffic of the nodes: cores follow the load after the move.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class HomeCandidate:
    """A node that stays.

    Parameters
    ----------
    node : int
        The node.
    free_slots : int
        Its free slots; below zero if executors share slots.
    own_cores : int
        The cores that the executor has there.
    homes : int
        How many executors are at home there.
    """

    node: int
    free_slots: int
    own_cores: int
    homes: int


class SlotUse(NamedTuple):
    """The slots of a node, and the cores that executors hold there: more than slots where these are shared."""

    slots: int
    held: int

    def crowd(self, more: int = 0) -> float:
        """Return the cores per slot, with more cores."""
        return (self.held + more) / self.slots if self.slots else float("inf")


def following_cores(cores: int, source: SlotUse, target: SlotUse) -> int:
    """Return how many of the cores that an executor has at home follow its home to another node.

    Parameters
    ----------
    cores : int
        The cores that it has at its home.
    source, target : SlotUse
        The old and the new home, before the move.

    Returns
    -------
    int
        As many as the new home has free slots; where executors share slots, as many as leave it no more crowded than
        the old home was. Cores that stay behind would take the executor's shards back there.

    Examples
    --------
    >>> following_cores(2, SlotUse(2, 2), SlotUse(2, 1)), following_cores(1, SlotUse(2, 2), SlotUse(2, 2))
    (1, 0)
    >>> following_cores(1, SlotUse(2, 6), SlotUse(2, 2)), following_cores(1, SlotUse(2, 4), SlotUse(2, 4))
    (1, 0)
    """
    free = max(0, target.slots - target.held)
    if not target.slots:
        return 0
    shared = [more for more in range(1, cores + 1) if target.crowd(more) <= source.crowd(1 - more)]
    return min(cores, max([free, *shared]))


def new_home(candidates: Collection[HomeCandidate], cores: int) -> int | None:
    """Return the new home of an executor.

    Parameters
    ----------
    candidates : collection of HomeCandidate
        The nodes that stay.
    cores : int
        The cores of the executor on all nodes.

    Returns
    -------
    int or None
        The node; None if there is no candidate.

    Examples
    --------
    >>> new_home([HomeCandidate(0, 1, 0, 2), HomeCandidate(1, 2, 1, 2), HomeCandidate(2, 8, 0, 0)], cores=3)
    1
    """
    return min(candidates, key=lambda one: _cost(one, cores)).node if candidates else None


def _cost(candidate: HomeCandidate, cores: int) -> tuple[int, int, int, int]:
    local = min(cores, candidate.own_cores + max(0, candidate.free_slots))
    return -local, -candidate.own_cores, candidate.homes, candidate.node

"""Admission of planned changes: changes that come too soon or move too much state at once are deferred.

Goal
    Executors' cores do not change constantly and state transfers do not saturate the network, yet overload is answered
    at once.
Method
    A change of an executor whose cores changed less than `cooldown` ago is deferred unless it is urgent. Urgent are
    changes that answer an overload or a missed target, that empty a retiring node, and those that free a core which an
    urgent change takes. Then changes are admitted, urgent ones first, while the state that they move fits into
    `budget_bytes`; a change that alone exceeds the budget is admitted if no other state moves. The admitted changes
    never fill a node beyond its cores, or beyond the cores occupied on it now.
Not done
    Waiting until a surplus has lasted: `dask_elastic.control.hysteresis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.keys import ExecutorKey
from dask_elastic.control.settings import ControlSettings

Cores = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProposedChange:
    """A planned change of one executor's cores.

    Parameters
    ----------
    key : tuple of str, int and ExecutorId
        Job, generation and executor.
    before, after : array of int
        Cores on each node.
    moved_bytes : float
        State that leaves its node.
    urgent : bool
        Whether the change is exempt from the cooldown.
    """

    key: ExecutorKey
    before: Cores
    after: Cores
    moved_bytes: float
    urgent: bool


@dataclass(frozen=True, eq=False)
class Admission:
    """The guard's answer to a plan.

    Parameters
    ----------
    admitted : tuple of ProposedChange
        The changes to carry out, in this order: a core is released before another executor takes it, where possible.
    deferred : mapping of tuple to str
        The executors whose changes are deferred, and the reasons.
    """

    admitted: tuple[ProposedChange, ...]
    deferred: Mapping[ExecutorKey, str]


class Guard:
    """Vets plans; remembers when each executor's cores last changed.

    Parameters
    ----------
    settings : ControlSettings
        `cooldown` and `budget_bytes` are used.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._changed: dict[ExecutorKey, float] = {}

    def vet(self, now: float, changes: Sequence[ProposedChange], free: Cores) -> Admission:
        """Return which changes are carried out now.

        Parameters
        ----------
        now : float
            The time in seconds.
        changes : sequence of ProposedChange
            The plan; as a whole it fits on the nodes.
        free : array of int
            Free cores of each node; negative if the node must release some.

        Returns
        -------
        Admission
            The admitted changes, from which the cooldown starts, and the deferred ones.
        """
        self._changed = {key: at for key, at in self._changed.items() if now - at < self._settings.cooldown}
        deferred = {change.key: self._cooling(now, change) for change in changes if self._too_soon(change)}
        chosen = [change for change in changes if change.key not in deferred]
        waiting = [change for change in changes if change.key in deferred]
        chosen += _releasing([change for change in chosen if change.urgent], chosen, waiting, free)
        chosen = self._within_budget(chosen, deferred)
        chosen = _fitting(chosen, free, deferred)
        for change in chosen:
            deferred.pop(change.key, None)
            self._changed[change.key] = now
        return Admission(tuple(_in_order(chosen, free)), deferred)

    def _too_soon(self, change: ProposedChange) -> bool:
        return not change.urgent and change.key in self._changed

    def _cooling(self, now: float, change: ProposedChange) -> str:
        ago = now - self._changed[change.key]
        return f"its cores changed {ago:.1f} s ago and the cooldown is {self._settings.cooldown:g} s"

    def _within_budget(self, changes: list[ProposedChange], deferred: dict[ExecutorKey, str]) -> list[ProposedChange]:
        """Return the changes whose state fits into the budget, urgent ones first, then those that move least."""
        budget, moved, chosen = self._settings.budget_bytes, 0.0, []
        for change in sorted(changes, key=lambda change: (not change.urgent, change.moved_bytes, change.key)):
            if moved + change.moved_bytes <= budget or not moved:
                chosen.append(change)
                moved += change.moved_bytes
            else:
                mebi = [f"{amount / 2**20:.1f} MiB" for amount in (change.moved_bytes, moved, budget)]
                deferred[change.key] = (
                    f"it moves {mebi[0]} of state, and {mebi[1]} of this period's budget of {mebi[2]} are used"
                )
        return chosen


def _releasing(
    urgent: list[ProposedChange], chosen: list[ProposedChange], waiting: list[ProposedChange], free: Cores
) -> list[ProposedChange]:
    """Return the waiting changes that release cores which urgent changes take."""
    left = free - _taken(chosen, len(free))
    wanted = np.zeros(len(free), dtype=np.bool_)
    for change in urgent:
        wanted |= change.after > change.before
    found = []
    for change in waiting:
        releases = (change.after < change.before) & wanted & (left < 0)
        if releases.any():
            found.append(change)
            left = left - (change.after - change.before)
    return found


def _fitting(changes: list[ProposedChange], free: Cores, deferred: dict[ExecutorKey, str]) -> list[ProposedChange]:
    """Defer changes that take cores which are not released now, starting with the least urgent, largest change."""
    chosen, taken = list(changes), _taken(changes, len(free))
    while True:
        crowded = np.flatnonzero((taken > np.maximum(free, 0)) & (taken > 0))
        if not crowded.size:
            return chosen
        node = int(crowded[0])
        taking = [change for change in chosen if change.after[node] > change.before[node]]
        last = max(taking, key=lambda change: (not change.urgent, change.moved_bytes, change.key))
        chosen.remove(last)
        taken -= last.after - last.before
        deferred[last.key] = "it needs cores that other executors do not release yet"


def _in_order(changes: list[ProposedChange], free: Cores) -> list[ProposedChange]:
    """Order changes such that cores are free when taken; in a cycle, the change that releases most comes first."""
    if not changes:
        return []
    changes = sorted(changes, key=lambda change: change.key)
    deltas = np.stack([change.after - change.before for change in changes])
    more, waiting, left, ordered = deltas.sum(axis=1), np.ones(len(changes), dtype=np.bool_), free.copy(), []
    for _ in changes:
        ready = waiting & (deltas <= np.maximum(left, 0)).all(axis=1)
        options = np.flatnonzero(ready if ready.any() else waiting)
        first = int(options[more[options].argmin()])
        waiting[first] = False
        left -= deltas[first]
        ordered.append(changes[first])
    return ordered


def _taken(changes: Sequence[ProposedChange], nodes: int) -> Cores:
    total = np.zeros(nodes, dtype=np.int64)
    for change in changes:
        total += change.after - change.before
    return total

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.change_order import ChangeOrder
from dask_elastic.control.keys import ExecutorKey
from dask_elastic.control.settings import ControlSettings
from dask_elastic.planning.turns import no_pause

Cores = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProposedChange:
    """A planned change of one executor's cores.

    Parameters
    ----------
    key : tuple of str, int and ExecutorId
        Job, generation and executor.
    before, after : mapping of int to int
        Cores by node, in the order of nodes and without nodes where it has none.
    moved_bytes : float
        State that leaves its node.
    urgent : bool
        Whether the change is exempt from the cooldown.

    Attributes
    ----------
    taken : mapping of int to int
        Cores that it takes on nodes; negative where it releases some.
    """

    key: ExecutorKey
    before: Mapping[int, int]
    after: Mapping[int, int]
    moved_bytes: float
    urgent: bool

    # Set on each instance; not a field, since it follows from the others.
    taken: ClassVar[dict[int, int]]

    def __post_init__(self) -> None:
        taken = dict(self.after)
        for node, cores in self.before.items():
            if (more := taken.get(node, 0) - cores) != 0:
                taken[node] = more
            else:
                del taken[node]
        object.__setattr__(self, "taken", taken)


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
    pause : callable
        Called between steps.
    """

    def __init__(self, settings: ControlSettings, pause: Callable[[], None] = no_pause):
        self._settings = settings
        self._pause = pause
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
        # The most urgent, smallest changes come first.
        self._pause()
        chosen = self._within_budget(chosen, deferred)
        self._pause()
        chosen = _fitting(chosen, free, deferred)
        self._pause()
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
    if not waiting:
        return []
    left = (free - _taken(chosen, len(free))).tolist()
    wanted = {node for change in urgent for node, cores in change.taken.items() if cores > 0}
    found = []
    for change in waiting:
        if any(cores < 0 and node in wanted and left[node] < 0 for node, cores in change.taken.items()):
            found.append(change)
            for node, cores in change.taken.items():
                left[node] -= cores
    return found


def _fitting(changes: list[ProposedChange], free: Cores, deferred: dict[ExecutorKey, str]) -> list[ProposedChange]:
    """Defer changes that take cores which are not released now, starting with the last ones."""
    taken = _taken(changes, len(free)).tolist()
    room = np.maximum(free, 0).tolist()
    # A heap, since it is sorted.
    crowded = [node for node, cores in enumerate(taken) if cores > room[node]]
    if not crowded:
        return changes
    by_node: dict[int, list[ProposedChange]] = {}
    for change in changes:
        for node, cores in change.taken.items():
            if cores > 0:
                by_node.setdefault(node, []).append(change)
    dropped: set[ExecutorKey] = set()
    while crowded:
        node = crowded[0]
        if taken[node] <= room[node]:
            heappop(crowded)
            continue
        last = by_node[node].pop()
        if last.key in dropped:
            continue
        dropped.add(last.key)
        deferred[last.key] = "it needs cores that other executors do not release yet"
        for where, cores in last.taken.items():
            taken[where] -= cores
            if cores < 0:
                heappush(crowded, where)
    return [change for change in changes if change.key not in dropped]


def _in_order(changes: list[ProposedChange], free: Cores) -> list[ProposedChange]:
    """Order changes such that cores are free when taken."""
    changes = sorted(changes, key=lambda change: change.key)
    order = ChangeOrder([change.taken for change in changes], free.tolist()).run()
    return [changes[number] for number in order]


def _taken(changes: Sequence[ProposedChange], nodes: int) -> Cores:
    total = [0] * nodes
    for change in changes:
        for node, cores in change.taken.items():
            total[node] += cores
    return np.array(total, dtype=np.int64)

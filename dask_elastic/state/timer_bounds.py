"""Lower bounds of the times of one task's timers, so that most state records need not search the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from dask_elastic.state.index import Slots
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.shard_owners import ShardOwners
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.view import StateView

UNKNOWN = -(2**63)
NEVER = 2**63 - 1


class TimerBounds:
    """For each timer a time before which it fires for no key of the task; used by the task's thread.

    Parameters
    ----------
    layout : StateLayout
        The declared state and timers.
    owners : ShardOwners
        The store. A shard that the task gets brings timers along, so that the bounds are unknown.
    """

    def __init__(self, layout: StateLayout, owners: ShardOwners) -> None:
        self._layout = layout
        self._owners = owners
        self._version: object = None
        self._earliest: dict[str, int] = dict.fromkeys(layout.timers, UNKNOWN)

    def note(self, view: StateView) -> None:
        """Lower the bounds by what logic has set."""
        for name, bound in self._earliest.items():
            earliest = view.earliest_timer(name)
            if earliest is not None and earliest < bound:
                self._earliest[name] = earliest

    def reached(self, limits: Mapping[str, int]) -> bool:
        """Whether a timer may be due; `limits` has the time of each timer that may fire."""
        # Read before the owners are: a shard that the task gets during a search is searched for the next record.
        version = self._owners.owner_version
        if version is not self._version:
            self._version = version
            self._earliest = dict.fromkeys(self._earliest, UNKNOWN)
        return any(self._earliest[name] <= limit for name, limit in limits.items())

    def search(
        self, arrays: SlotArrays, parts: Iterable[Slots], limits: Mapping[str, int], shards: npt.NDArray[np.bool_]
    ) -> Slots:
        """Return the slots in some shards with a timer that is due, among all slots of the task; sets the bounds.

        Parameters
        ----------
        arrays : SlotArrays
            The store's arrays.
        parts : iterable of ndarray of intp
            All slots of the task that have state, in parts.
        limits : mapping of str to int
            The time up to which each timer fires, in microseconds.
        shards : ndarray of bool
            The shards whose timers fire.

        Returns
        -------
        ndarray of intp
            Some of the slots.
        """
        earliest = dict.fromkeys(limits, NEVER)
        found = [np.empty(0, np.intp)]
        for slots in parts:
            here = shards.take(arrays.shards.take(slots))
            any_due = np.zeros(len(slots), np.bool_)
            for name, limit in limits.items():
                start = self._layout.spans[self._layout.timers[name]].start
                times = arrays.values[start].take(slots).view(np.int64)
                known = arrays.values[start + 1].take(slots)
                due = known & here & (times <= limit)
                later = times[known & ~due]
                earliest[name] = min(earliest[name], int(later.min(initial=NEVER)))
                any_due |= due
            found.append(slots[any_due])
        self._earliest.update(earliest)
        return np.concatenate(found)

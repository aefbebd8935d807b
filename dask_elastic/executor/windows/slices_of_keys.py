"""Looks up the slices of some keys of one task, wherever these are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import EventCells, Numbers
from dask_elastic.executor.windows.partials import Groups, merged_groups
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.windowing import Windowing

MOST_LOOKUPS = 1 << 20
"""Slices are looked up in parts of so many."""


class SlicesOfKeys:
    """Looks up the slices of some keys of one task; not shared between threads.

    Parameters
    ----------
    windowing : Windowing
        Windows that share slices.
    keys : sequence of str
        The key columns.
    store : KeyedStore
        The store.
    session : Session
        The task's session with it.
    places : SlicePlaces
        Where its slices are.
    groups : int
        The number of groups of the component's key space.
    """

    def __init__(
        self,
        windowing: Windowing,
        keys: Sequence[str],
        store: KeyedStore,
        session: Session,
        places: SlicePlaces,
        groups: int,
    ) -> None:
        self._slices = EventCells(windowing)
        self._keys = keys
        self._store = store
        self._session = session
        self._places = places
        self._groups = groups

    def _merged(
        self, bound: BoundWindows, hashes: Words, checks: Words, numbers: Numbers, owners: Slots
    ) -> tuple[list[Column], Slots]:
        """Return the state of owners of slices, merged from those that there are; and which owners have any.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        hashes, checks : ndarray of uint64
            The identity of each slice's key.
        numbers : ndarray of int64
            The numbers of the slices.
        owners : ndarray of intp
            What each slice is merged into, in ascending order.

        Returns
        -------
        list of (ndarray or Ragged), ndarray of intp
            The state of the aggregates, and the owners.
        """
        values, owners = self._found(bound, hashes, checks, numbers, owners)
        opens = np.flatnonzero(np.diff(owners, prepend=-1))
        groups = Groups(np.arange(len(owners)), np.diff(np.append(opens, len(owners))))
        return merged_groups(bound.bundle, values, groups, 0, len(opens)), owners.take(opens)

    def _found(
        self, bound: BoundWindows, hashes: Words, checks: Words, numbers: Numbers, owners: Slots
    ) -> tuple[list[Column], Slots]:
        """Return the values of the slices that there are, and their owners, in the order of these, then slices."""
        shards = np.ones(self._store.shards, np.bool_)
        begins = self._places.starts(numbers)
        while True:
            slots: list[Slots] = []
            for tried in self._places.identities(numbers):
                parts = part_hashes(hashes, tried, self._groups), part_checks(checks, tried, len(hashes))
                layout, some = self._store.find(*parts)
                slots.append(some)
            known, chosen = np.stack(slots, axis=1), np.stack(slots, axis=1) >= 0
            of, flat = np.nonzero(chosen)[0], known[chosen]
            read = self._session.values_at(flat, layout, shards, slice(bound.own + 1))
            if read is None:
                continue
            values, live = read
            # A place may have another slice by now, or none.
            kept = np.flatnonzero(live & (np.asarray(values.pop()) == begins.take(of)))
            return [column.take(kept) for column in values], owners.take(of.take(kept))

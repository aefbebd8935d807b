"""Up to which event time a task may have partials of slices, and of instances beside them."""

from __future__ import annotations

import numpy as np

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.event_times import Times
from dask_elastic.state.session import Session
from dask_elastic.state.slot_search import Mask
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END
from dask_elastic.state.windows.instance_marks import has_mark


class PartialKinds:
    """The latest end of the partials of either kind that one task may have; not shared between threads.

    A job that changes its plan has partials of both kinds until the instances have closed that were open then. Shards
    that come from other tasks bring theirs: the slots are searched once whenever shards have changed their owners.

    Parameters
    ----------
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with it.
    """

    def __init__(self, store: KeyedStore, session: Session) -> None:
        self._store = store
        self._session = session
        self._owners: object = None
        self._ends = {False: NO_END, True: NO_END}

    def added(self, of_instances: bool, ends: Times) -> None:
        """Note that rows were added to partials with some ends."""
        self._ends[of_instances] = max(self._ends[of_instances], int(ends.max(initial=NO_END)))

    def last_end(self, bound: BoundWindows, of_instances: bool) -> int:
        """Return the latest end, or a later time; `NO_END` if there are none.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        of_instances : bool
            Of which kind.
        """
        owners = self._store.owner_version
        if owners != self._owners:
            self._session.read(lambda arrays, window: self._noted(bound, arrays, window), self._all_shards())
            self._owners = owners
        return self._ends[of_instances]

    def _all_shards(self) -> Mask:
        return np.ones(self._store.shards, np.bool_)

    def _noted(self, bound: BoundWindows, arrays: SlotArrays, window: slice) -> Mask:
        """Note the ends of the partials in a range of slots; chooses none, so that none is copied."""
        starts, ends = (np.asarray(arrays.values[bound.own + side][window], np.int64) for side in (0, 1))
        own = has_mark(starts)
        for kind in (False, True):
            # Those of other tasks count as well: they make the bound later at most.
            self.added(kind, ends[own == kind])
        return np.zeros(len(ends), np.bool_)

"""The slots of keys in a fused compute's store, by those that the compute before it has for the same keys."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.index import Slots
from dask_elastic.state.session import Again, Located, Session
from dask_elastic.topology.aggregates.grouping import Grouping

_UNKNOWN = -1


class KeyLink:
    """Finds slots without hashing and looking up keys; used by one task's thread.

    Parameters
    ----------
    session : Session
        The task's session with the fused compute's store.

    Notes
    -----
    A slot keeps its key as long as the store's layout has its number. So what is known holds for one pair of layouts.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layouts = _UNKNOWN, _UNKNOWN
        self._slots: Slots = np.empty(0, np.intp)

    def located(self, before: Located, again: Again) -> Located | None:
        """Return the keys of rows, each of another key; None if some are not known.

        Parameters
        ----------
        before : Located
            The same keys in the store of the compute before, one for each row.
        again : callable
            As for `Session.locate_at`.
        """
        slots = before.slots
        if self._layouts[0] != before.layout or not len(slots) or int(slots.max()) >= len(self._slots):
            return None
        own = self._slots.take(slots)
        if own.min() < 0:
            return None
        count = len(own)
        grouping = Grouping(np.arange(count), count, np.ones(count, np.intp))
        return self._session.locate_at(own, self._layouts[1], grouping, again)

    def note(self, before: Located, found: Located) -> None:
        """Note where keys are that were looked up.

        Parameters
        ----------
        before, found : Located
            The same keys in the store of the compute before, and in this one, after its state was written.
        """
        if len(before) != len(found.grouping):
            # Some of the rows have raised.
            return
        if self._layouts != (before.layout, found.layout):
            self._layouts = before.layout, found.layout
            self._slots = np.empty(0, np.intp)
        least = int(before.slots.max(initial=-1)) + 1
        if least > len(self._slots):
            grown = np.full(max(least, 2 * len(self._slots)), _UNKNOWN, np.intp)
            grown[: len(self._slots)] = self._slots
            self._slots = grown
        self._slots[before.slots] = found.slots.take(found.grouping.ordinals)

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
        # All slots below this number are known, and the same in both stores: mostly both get their keys in one order.
        self._alike = 0

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
        if self._layouts[0] != before.layout or not len(slots):
            return None
        greatest = int(np.maximum.reduce(slots))
        if greatest < self._alike:
            own = slots
        elif greatest >= len(self._slots):
            return None
        else:
            own = self._slots.take(slots)
            if np.minimum.reduce(own) < 0:
                return None
        return self._session.locate_at(own, self._layouts[1], Grouping.of_single_rows(len(own)), again)

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
            self._slots, self._alike = np.empty(0, np.intp), 0
        least = int(before.slots.max(initial=-1)) + 1
        if least > len(self._slots):
            grown = np.full(max(least, 2 * len(self._slots)), _UNKNOWN, np.intp)
            grown[: len(self._slots)] = self._slots
            self._slots = grown
        self._slots[before.slots] = found.slots.take(found.grouping.ordinals)
        self._note_alike(len(before))

    def _note_alike(self, noted: int) -> None:
        """Extend the range of slots that are the same in both stores, in steps of the number that was noted."""
        while noted:
            start = self._alike
            part = self._slots[start : start + noted]
            differs = part != np.arange(start, start + len(part))
            self._alike += int(differs.argmax()) if differs.any() else len(part)
            if self._alike < start + noted:
                return

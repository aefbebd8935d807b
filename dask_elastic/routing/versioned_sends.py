"""The sends of one upstream instance to one operator, counted by version of the operator's table of homes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.lock import MakeLock, NoLock


class MarkDue(NamedTuple):
    """An end mark that is due: the instance sends nothing more to this home of an executor."""

    executor: int
    home: int
    version: int


class _Use:
    """A table, and how many sends that use it are in progress."""

    __slots__ = ("sends", "table")

    def __init__(self, table: HomeTable):
        self.table = table
        self.sends = 0


class VersionedSends:
    """Decides which home each send of an upstream instance uses, and when it has used an old home for the last time.

    Whatever thread sends a batch or a control record calls `begin`, sends to the homes in the table that this returns,
    and calls `end`. A sender must not wait for credit between these calls. `switch` never waits: sends that began
    under the old table end under it, later ones use the new one, and the end mark is due when the last old one has
    ended. It is returned to exactly one thread, which sends it over the channel of the old sends.

    Parameters
    ----------
    table : HomeTable
        The first table.
    make_lock : callable
        Makes the lock between the threads of the instance.

    Examples
    --------
    >>> sends = VersionedSends(HomeTable.initial([0, 0]))
    >>> old = sends.begin()
    >>> sends.switch(old.moved(1, to=2))
    []
    >>> new = sends.begin()
    >>> new.homes, sends.end(new), sends.end(old)
    ((0, 2), [], [MarkDue(executor=1, home=0, version=1)])
    """

    __slots__ = ("_finished", "_in_use", "_lock")

    def __init__(self, table: HomeTable, make_lock: MakeLock = NoLock):
        self._lock = make_lock()
        # Oldest first; the last one is current.
        self._in_use = deque([_Use(table)])
        self._finished = False

    def begin(self) -> HomeTable:
        """Begin a send; returns the table that it uses."""
        with self._lock:
            current = self._in_use[-1]
            current.sends += 1
            return current.table

    def end(self, table: HomeTable) -> list[MarkDue]:
        """End a send that has used a table; returns the end marks that are now due.

        Raises
        ------
        ProtocolError
            If no send that uses this table is in progress.
        """
        with self._lock:
            for used in self._in_use:
                if used.table.version == table.version and used.sends:
                    used.sends -= 1
                    return self._due() if len(self._in_use) > 1 else []
            raise ProtocolError(f"a send ended under version {table.version}, under which none is in progress")

    def switch(self, table: HomeTable) -> list[MarkDue]:
        """Use a newer table for all further sends; returns the end marks that are due at once.

        A table that is not newer than the current one changes nothing.
        """
        with self._lock:
            if table.version <= self._in_use[-1].table.version:
                return []
            self._in_use.append(_Use(table))
            return self._due()

    def finish(self) -> None:
        """Note that the instance has sent its end to all executors: it sends no end mark any more.

        Called between `begin` and `end` of the send of all these ends, so that no version begins between two of them.
        """
        with self._lock:
            self._finished = True

    def _due(self) -> list[MarkDue]:
        due: list[MarkDue] = []
        while len(self._in_use) > 1 and not self._in_use[0].sends:
            old, new = self._in_use.popleft().table, self._in_use[0].table
            due += [MarkDue(executor, old.homes[executor], new.version) for executor in new.differences(old)]
        return [] if self._finished else due

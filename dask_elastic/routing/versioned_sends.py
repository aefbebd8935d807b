"""The sends of one upstream instance to one operator, counted by version of the operator's table of the first tier."""

from __future__ import annotations

from collections import deque
from typing import Generic

from dask_elastic.routing.mark_due import MarkDue, Table
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.lock import MakeLock, NoLock


class _Use(Generic[Table]):
    """A table, and how many sends that use it are in progress."""

    __slots__ = ("sends", "table")

    def __init__(self, table: Table):
        self.table = table
        self.sends = 0


class VersionedSends(Generic[Table]):
    """Decides which home each send of an upstream instance uses, and when it has used an old home for the last time.

    Whatever thread sends a batch or a control record calls `begin`, sends to the homes in the table that this returns,
    and calls `end`. A sender must not wait for credit between these calls. `switch` never waits: sends that began
    under the old table end under it, later ones use the new one, and the end mark is due when the last old one has
    ended. It is returned to exactly one thread, which sends it over the channel of the old sends.

    Parameters
    ----------
    table : HomeTable or GroupTable
        The first table.
    make_lock : callable
        Makes the lock between the threads of the instance.

    Attributes
    ----------
    paused : bool
        Whether no send of a batch may begin: the operator's upstream instances wait until its groups have moved. The
        sender checks this before it calls `begin`. Control records are sent all the same: the threads that send them
        must not wait.

    Examples
    --------
    >>> from dask_elastic.routing.home_table import HomeTable
    >>> sends = VersionedSends(HomeTable.initial([0, 0]))
    >>> old = sends.begin()
    >>> sends.switch(old.moved(1, to=2))
    []
    >>> new = sends.begin()
    >>> new.homes, sends.end(new), sends.end(old)
    ((0, 2), [], [MarkDue(executor=1, home=0, version=1)])
    """

    __slots__ = ("_finished", "_in_use", "_lock", "paused")

    def __init__(self, table: Table, make_lock: MakeLock = NoLock):
        self._lock = make_lock()
        # Oldest first; the last one is current.
        self._in_use = deque([_Use(table)])
        self._finished = False
        self.paused = False

    @property
    def current(self) -> Table:
        """The table that sends use which begin now."""
        return self._in_use[-1].table

    def begin(self) -> Table:
        """Begin a send; returns the table that it uses."""
        with self._lock:
            current = self._in_use[-1]
            current.sends += 1
            return current.table

    def end(self, table: Table) -> list[MarkDue]:
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

    def switch(self, table: Table) -> list[MarkDue]:
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
            due += new.marks_since(old)
        return [] if self._finished else due

"""The state of key groups to come, installed at their next executor while they are still processed elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.vocab.errors import MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock


class IncomingGroups:
    """Installs the portions of an `OutgoingGroups`, each once and in order, in the store of the next executor.

    No task of the executor accesses the groups: they have no owner there.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    executor : ExecutorId
        The executor.
    store : PrimaryState
        Its state.
    make_lock : callable
        Makes the lock between the threads that install portions and the one that drops them.
    """

    def __init__(self, version: int, executor: ExecutorId, store: PrimaryState, make_lock: MakeLock = NoLock):
        self.version = version
        self._executor = executor
        self._store = store
        self._lock = make_lock()
        self._portions: Counter[int] = Counter()
        self._groups: set[int] = set()
        self._dropped = False

    def install(self, copied: CopiedGroups) -> None:
        """Install a portion.

        Parameters
        ----------
        copied : CopiedGroups
            The portion.

        Raises
        ------
        MoveRefused
            If the move was cancelled.
        ProtocolError
            If it does not follow the portion before from that executor; nothing is installed.
        """
        with self._lock:
            if self._dropped:
                raise MoveRefused(f"the move of groups to version {self.version} was cancelled at {self._executor}")
            self._check(copied.source, copied.position)
            self._groups.update(copied.groups)
            self._install(copied.rows)
            self._portions[copied.source] += 1

    def complete(self, source: int, portions: int, rest: Iterable[CopiedRows]) -> None:
        """Install what an executor has not copied before its groups have left it.

        Raises
        ------
        ProtocolError
            If a portion from that executor is missing; nothing is installed.
        """
        with self._lock:
            self._check(source, portions)
            self._install(rest)

    def drop(self) -> None:
        """Delete what was installed: the groups stay where they are. Later portions are refused."""
        with self._lock:
            self._dropped = True
            # With tombstones: the groups may have been here since the last checkpoint.
            self._store.remove(self._groups)

    def _install(self, rows: Iterable[CopiedRows]) -> None:
        stores = self._store.stores(self._executor.component)
        for part in rows:
            # The next checkpoint of this executor has all keys of the groups.
            stores[part.operator].install(part.rows, dirty=True)

    def _check(self, source: int, position: int) -> None:
        if position != self._portions[source]:
            raise ProtocolError(
                f"portion {position} of groups from executor {source} does not follow portion "
                f"{self._portions[source]} at {self._executor}, version {self.version}"
            )

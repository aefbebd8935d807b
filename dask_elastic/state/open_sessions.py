"""The sessions of a store's tasks, and their gates, which keep them off the arrays while these change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dask_elastic.state.session import Session
from dask_elastic.state.shared_store import SharedStore
from dask_elastic.vocab.lock import Lock, MakeLock


class OpenSessions:
    """The open session of each task; the caller holds the store's lock.

    Parameters
    ----------
    make_lock : callable
        Makes the gates.

    Examples
    --------
    >>> from dask_elastic.vocab.lock import NoLock
    >>> with OpenSessions(NoLock).all_gates():
    ...     pass
    """

    def __init__(self, make_lock: MakeLock) -> None:
        self._make_lock = make_lock
        self._sessions: dict[int, Session] = {}

    def open(self, store: SharedStore, task: int, lock: Lock) -> Session:
        """Open a session for a task; the task's previous session is closed."""
        session = Session(store, task, self._make_lock())
        with lock:
            before = self._sessions.get(task)
            if before is not None:
                with before.gate:
                    before.closed = True
            self._sessions[task] = session
        return session

    def close(self, session: Session) -> None:
        """Close a session; see `Session.close`."""
        with session.gate:
            session.closed = True
        if self._sessions.get(session.task) is session:
            del self._sessions[session.task]

    @contextmanager
    def all_gates(self) -> Iterator[None]:
        """Hold every session's gate, so that no session accesses the arrays."""
        with ExitStack() as held:
            for task in sorted(self._sessions):
                gate = self._sessions[task].gate
                gate.__enter__()
                held.callback(gate.__exit__, None, None, None)
            yield

"""Locks that a driver passes in: real ones for threads, empty ones in the simulator."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Lock(Protocol):
    """The part of `threading.Lock` that dask_elastic needs."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


class NoLock:
    """A lock that does nothing, for drivers with a single thread.

    Examples
    --------
    >>> with NoLock():
    ...     pass
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class MakeLock(Protocol):
    """A factory of locks, such as `threading.Lock` and `NoLock`."""

    def __call__(self) -> Lock:
        """Return a new lock."""
        ...

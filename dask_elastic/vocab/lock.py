"""Locks as values that a driver hands in: real ones where threads run, empty ones in the simulator."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Lock(Protocol):
    """What `threading.Lock` offers and this package needs."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


class NoLock:
    """A lock for drivers with one thread: it guards nothing and costs next to nothing.

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
    """Makes a fresh lock; `threading.Lock` and `NoLock` are such."""

    def __call__(self) -> Lock:
        """Make one."""
        ...

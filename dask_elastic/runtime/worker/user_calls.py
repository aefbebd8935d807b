"""Calls of user code that run: threads keep their start times, and each report lists those that do not return."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import TypeAlias, TypeVar

import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, FailedRows, OnError, Result, RunRange
from dask_elastic.runtime.protocol.reports import StalledCall

T = TypeVar("T")

_OWN = str(Path(__file__).parents[2]) + os.sep
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen"})


_Call: TypeAlias = tuple[str, str, float]
"""A call that runs: of which operator, what it does there, and since when."""


class UserCalls:
    """The calls of user code in the threads of one job on this node.

    Parameters
    ----------
    clock : callable
        Returns the time, seconds.

    Examples
    --------
    >>> seconds = iter([0.0, 40.0])
    >>> calls = UserCalls(clock=lambda: next(seconds))
    >>> with calls.running("per_key", "process"):
    ...     [(call.operator, call.activity) for call in calls.longer_than(30.0, node=0)]
    [('per_key', 'process')]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._running: dict[int, _Call] = {}
        self._since: dict[tuple[int, float], float] = {}

    def running(self, operator: str, activity: str) -> AbstractContextManager[None]:
        """Note that this thread runs code of an operator; a call within the call has a start of its own.

        Parameters
        ----------
        operator : str
            The operator.
        activity : str
            What its code does: "read", "process" or "write".
        """
        return _Running(self, operator, activity)

    def enter(self, thread: int, operator: str, activity: str) -> _Call | None:
        """Note that a thread begins a call, and return the call in which it already is."""
        before = self._running.get(thread)
        self._running[thread] = (operator, activity, self._clock())
        return before

    def leave(self, thread: int, before: _Call | None) -> None:
        """Note that a thread has returned from its call."""
        if before is None:
            del self._running[thread]
        else:
            self._running[thread] = before

    def awaited(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items for which code of dask_elastic waits: this time does not count as the user's.

        Parameters
        ----------
        items : iterator
            The items.
        """
        while True:
            thread = threading.get_ident()
            call = self._running.pop(thread, None)
            try:
                item = next(items, None)
            finally:
                if call is not None:
                    self.enter(thread, *call[:2])
            if item is None:
                return
            yield item

    def longer_than(self, seconds: float | None, node: int) -> tuple[StalledCall, ...]:
        """Return the calls that have not returned for some time; called once per report.

        Parameters
        ----------
        seconds : float or None
            How long they have been running at least; None for no limit: no call is listed.
        node : int
            This node.

        Returns
        -------
        tuple of StalledCall
            The calls, oldest first, with the innermost frame of user code.
        """
        now, today = self._clock(), time.time()
        calls = [] if seconds is None else list(self._running.items())
        stalled = {thread: call for thread, call in calls if now - call[2] >= (seconds or 0.0)}
        # Kept between reports, since it identifies the call: the difference of the two clocks varies.
        self._since = {
            call: self._since.get(call, today - (now - call[1]))
            for call in ((thread, began) for thread, (_, _, began) in stalled.items())
        }
        if not stalled:
            return ()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()
        found = [
            StalledCall(operator, activity, node, since, names.get(thread, ""), user_frame(frames.get(thread)))
            for (thread, (operator, activity, _)), since in zip(stalled.items(), self._since.values(), strict=True)
        ]
        return tuple(sorted(found, key=lambda call: (call.since, call.thread)))


class _Running:
    """The ``with`` block of one call; a class, since generators take several times as long."""

    __slots__ = ("_activity", "_before", "_calls", "_operator", "_thread")

    def __init__(self, calls: UserCalls, operator: str, activity: str):
        self._calls = calls
        self._operator = operator
        self._activity = activity

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._before = self._calls.enter(self._thread, self._operator, self._activity)

    def __exit__(self, *error: object) -> None:
        self._calls.leave(self._thread, self._before)


class WatchedErrorPolicy(ErrorPolicy):
    """An `ErrorPolicy` that notes the calls of user code.

    Parameters
    ----------
    on_error, add_dead_letters
        As for `ErrorPolicy`.
    calls : UserCalls
        Notes them.
    """

    def __init__(self, on_error: OnError, add_dead_letters: Callable[[FailedRows], None], calls: UserCalls):
        super().__init__(on_error, add_dead_letters)
        self._calls = calls

    def run(self, operator: str, function: RunRange[Result], rows: pa.RecordBatch) -> list[Result]:
        """Process a batch; see `ErrorPolicy.run`."""
        thread = threading.get_ident()
        before = self._calls.enter(thread, operator, "process")
        try:
            return super().run(operator, function, rows)
        finally:
            self._calls.leave(thread, before)


def user_frame(frame: FrameType | None) -> str:
    """Return the innermost frame of user code in a thread's stack, as file, line and function.

    Parameters
    ----------
    frame : frame or None
        The thread's innermost frame.

    Returns
    -------
    str
        Of code outside dask_elastic and the standard library, where possible not of an installed package; empty
        without a frame.

    Examples
    --------
    >>> user_frame(None)
    ''
    """
    if frame is None:
        return ""
    best, rank = frame, 3
    while frame is not None and frame.f_code is not WatchedErrorPolicy.run.__code__:
        # Frames are visited from the inside, so an outer one has to be better.
        if (its := _rank(frame.f_code.co_filename)) < rank:
            best, rank = frame, its
        frame = frame.f_back
    return f"{best.f_code.co_filename}:{best.f_lineno} in {best.f_code.co_name}"


def _rank(file: str) -> int:
    """Return 0 for a user's file, 1 for an installed package, 2 for the standard library, 3 for dask_elastic."""
    if file.startswith(_OWN):
        return 3
    if "site-packages" in file or "dist-packages" in file:
        return 1
    return 2 if file.startswith(_STANDARD) else 0

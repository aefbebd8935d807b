"""Logs errors of work that is repeated often: the first of a kind with its traceback, then how many followed."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 60.0
"""Seconds between two messages about errors of one kind."""


@dataclass
class _Seen:
    """Errors of one kind since the last message about them."""

    logged_at: float
    count: int = 0
    newest: str = ""


class ErrorLog:
    """Logs errors that may come again in every round of a loop; used by one thread.

    Errors are of one kind if the same work raises the same type at the same line.

    Parameters
    ----------
    logger : logging.Logger
        The log.
    clock : callable
        Returns the time, seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic):
        self._logger = logger
        self._clock = clock
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def note(self, what: str, error: Exception) -> None:
        """Log the error of some work with its traceback, or count it if one of its kind was logged recently."""
        last = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)][-1:]
        kind = (what, type(error).__name__, "".join(last))
        seen = self._seen.get(kind)
        if seen is None:
            self._seen[kind] = _Seen(self._clock())
            self._logger.error(what, exc_info=error)
        else:
            # Not the error itself, whose frames would keep what they refer to.
            seen.count, seen.newest = seen.count + 1, str(error)

    def settle(self, *, ends: bool = False) -> None:
        """Log how many errors were counted, if that is due or the loop ends; called in each round."""
        now = self._clock()
        for kind, seen in list(self._seen.items()):
            since = now - seen.logged_at
            if since < SECONDS and not ends:
                continue
            # A kind of which none came since the last message is new when it comes again.
            del self._seen[kind]
            if seen.count:
                what, name, _ = kind
                text = "%s: the same error %d times more in %.0f s, at last %s: %s"
                self._logger.error(text, what, seen.count, since, name, seen.newest)
                self._seen |= {} if ends else {kind: _Seen(now)}

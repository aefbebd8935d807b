"""Logs errors of work that is repeated often: the first of a kind with its traceback, then how many followed."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SECONDS = 60.0
"""Seconds between two messages about errors of one kind."""

KINDS = 100
"""Most kinds of errors that are told apart at a time; further ones of the same work are counted together.

The first kind of each work is told apart in any case: other work that fails in many ways does not hide it.
"""


@dataclass(frozen=True)
class _Kind:
    """Errors of some work that look alike in the log; without places, all that are not told apart."""

    what: str
    places: tuple[str | tuple[str, int], ...] = ()


@dataclass
class _Seen:
    """Errors of one kind since the last message about them."""

    logged_at: float
    count: int = 0
    newest: str = ""


class ErrorLog:
    """Logs errors that may come again in every round of a loop; used by one thread.

    Errors are of one kind if they come from the same work, and their tracebacks have the same types and lines, those of
    their causes included. How deep a recursion is makes no difference.

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
        self._seen: dict[_Kind, _Seen] = {}

    def note(self, what: str, error: Exception) -> None:
        """Log the error of some work with its traceback, or count it if one of its kind was logged recently."""
        kind = _Kind(what, tuple(dict.fromkeys(_places(error))))
        if kind not in self._seen and (len(self._seen) < KINDS or all(seen.what != what for seen in self._seen)):
            self._seen[kind] = _Seen(self._clock())
            self._logger.error(what, exc_info=error)
            return
        seen = self._seen.get(kind)
        if seen is None:
            seen = self._seen.setdefault(_Kind(what), _Seen(self._clock()))
        # Not the error itself, whose frames would keep what they refer to.
        seen.count, seen.newest = seen.count + 1, f"{type(error).__name__}: {error}"

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
                which = "the same error %d times more" if kind.places else "errors of other kinds %d times"
                text = f"%s: {which} in %.0f s, at last %s"
                self._logger.error(text, kind.what, seen.count, since, seen.newest)
                self._seen |= {} if ends else {kind: _Seen(now)}


def _places(error: BaseException) -> Iterator[str | tuple[str, int]]:
    """Yield types and lines of the traceback of an error, and of the errors that are printed with it."""
    left: list[BaseException | None] = [error]
    # By their identity, since errors may be equal: the errors before an error may lead to it again.
    yielded: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in yielded:
            continue
        yielded.add(id(each))
        yield f"{type(each).__module__}.{type(each).__qualname__}"
        for frame, line in traceback.walk_tb(each.__traceback__):
            yield frame.f_code.co_filename, line
        # A cause suppresses the context.
        left.append(each.__cause__ if each.__suppress_context__ else each.__context__)
        left.extend(each.exceptions if isinstance(each, BaseExceptionGroup) else ())

"""The deadline of a client's call, and what is raised within the client once it has passed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 3.0
"""Seconds that the scheduler has for each answer, also beyond the deadline.

Without them, a call with a short timeout could never connect. They exceed the time for which a worker waits for room.
"""


class DeadlinePassed(Exception):
    """The deadline has passed; the caller of the client gets a `TimeoutError` with an explanation."""


class NoAnswer(DeadlinePassed):
    """The deadline has passed, and the scheduler has not answered.

    Parameters
    ----------
    uncertain_rows : int
        Rows that it was to forward, and may still forward.
    """

    def __init__(self, uncertain_rows: int = 0):
        super().__init__()
        self.uncertain_rows = uncertain_rows


def deadline_of(timeout: float | None) -> float | None:
    """Return the deadline, by the monotonic clock, of a call that begins now; None for no limit."""
    return None if timeout is None else time.monotonic() + timeout


def check_deadline(deadline: float | None) -> None:
    """Raise `DeadlinePassed` if a deadline has passed."""
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlinePassed


def unsent(error: DeadlinePassed, source: str, sent: str, timeout: float) -> TimeoutError:
    """Return the error for a caller whose rows were not all sent; `sent` says how many were."""
    if not isinstance(error, NoAnswer):
        return TimeoutError(
            f"{source} has had no room for {timeout:g} s: it reads more slowly than rows are sent. {sent}: send the "
            "others later"
        )
    maybe = f", and the next {error.uncertain_rows} may have been" if error.uncertain_rows else ""
    return TimeoutError(
        f"the scheduler has not answered within {timeout:g} s where {source} is, or whether it has taken rows. "
        f"{sent}{maybe}: send the others later"
    )


async def answered(asked: Awaitable[T], deadline: float | None) -> T:
    """Await an answer of the scheduler until a deadline, but at least `ANSWER_SECONDS`.

    Raises
    ------
    NoAnswer
        If there is none; `asked` is cancelled.
    """
    limit = None if deadline is None else max(deadline - time.monotonic(), ANSWER_SECONDS)
    try:
        async with asyncio.timeout(limit) as waiting:
            return await asked
    except TimeoutError as error:
        if not waiting.expired():
            raise
        raise NoAnswer from error

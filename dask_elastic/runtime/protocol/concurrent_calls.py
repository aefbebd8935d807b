"""Calls to several processes at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all calls, then return their answers, or raise the first error.

    `asyncio.gather` returns at the first error; if the caller is cancelled at the same moment, asyncio logs that no
    code has retrieved the error.

    Parameters
    ----------
    calls : iterable of awaitable
        The calls.

    Examples
    --------
    >>> async def double(number):
    ...     return 2 * number
    >>> asyncio.run(all_of(map(double, range(3))))
    [0, 2, 4]
    """
    answers: list[T] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers

"""How a handler answers a call: with its result, or with the error that it raised."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dask_elastic.runtime.protocol.remote_errors import dump_error

logger = logging.getLogger("dask_elastic.calls")

Handler = Callable[..., Awaitable[Any]]


def answered(handler: Handler) -> Handler:
    """Turn what a handler raises into an answer that the other side raises again."""

    @functools.wraps(handler)
    async def run(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return {"answer": await handler(*arguments, **named)}
        except Exception as error:  # becomes the answer
            logger.debug("%s: %r", handler.__name__, error)
            return {"error": dump_error(error)}

    return run

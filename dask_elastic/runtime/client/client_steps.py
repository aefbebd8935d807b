"""Steps of a client: generators that yield each wait, so that callers that block and callers that await share them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.client.call import check_blocking, check_open
from dask_elastic.runtime.client.outlet import Waiter

if TYPE_CHECKING:
    from distributed import Client


class TimedWait(NamedTuple):
    """Wait for a future, at most so many seconds.

    Parameters
    ----------
    waiter : Waiter
        The future.
    seconds : float
        The limit; the steps go on in any case, and are resumed with whether the future is done.
    """

    waiter: Waiter
    seconds: float


ClientStep = TimedWait | Callable[[], Awaitable[Any]]
"""What a client waits for: a future, or a coroutine function to run on the event loop of the client."""

ClientSteps = Generator[ClientStep, Any, None]
"""What a client does: it yields its waits, and is resumed with their results."""


def run_blocking(client: Client, steps: ClientSteps) -> None:
    """Run steps to their end in this thread, which blocks at each wait."""

    def wait(step: ClientStep) -> Any:
        if not isinstance(step, TimedWait):
            check_open(client)
            check_blocking(client)
            return client.sync(step)
        try:
            step.waiter.result(step.seconds)
        except TimeoutError:
            return False
        return True

    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                answer = wait(step)
            except BaseException as error:  # the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)


async def run_async(client: Client, steps: ClientSteps) -> None:
    """Run steps to their end in a coroutine, on any event loop."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await _wait(client, step)
            except BaseException as error:  # the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration:
        return


async def _wait(client: Client, step: ClientStep) -> Any:
    if isinstance(step, TimedWait):
        try:
            # At the limit this cancels the future, which then counts as done.
            await asyncio.wait_for(asyncio.wrap_future(step.waiter), step.seconds)
        except TimeoutError:
            return False
        return True
    check_open(client)
    loop = client.loop.asyncio_loop
    if loop is asyncio.get_running_loop():
        return await step()

    async def on_its_loop() -> Any:
        return await step()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(on_its_loop(), loop))

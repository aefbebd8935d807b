"""Work of a client that waits now and then, written once for callers that block and for callers that await."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_elastic.runtime.client.outlet import Waiter

if TYPE_CHECKING:
    from distributed import Client


class Pause(NamedTuple):
    """Wait for a future, at most so many seconds.

    Parameters
    ----------
    waiter : Waiter
        The future.
    seconds : float
        The limit; the work goes on in any case.
    """

    waiter: Waiter
    seconds: float


Step = Pause | Callable[[], Awaitable[Any]]
"""What work waits for: a pause, or a coroutine function to run on the event loop of the client."""

Steps = Generator[Step, Any, None]


def run(client: Client, steps: Steps) -> None:
    """Do the work in this thread, which blocks while it waits."""

    def wait(step: Step) -> Any:
        if not isinstance(step, Pause):
            return client.sync(step)
        with contextlib.suppress(TimeoutError):
            step.waiter.result(step.seconds)
        return None

    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                answer = wait(step)
            except BaseException as error:  # the work decides what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)


async def run_async(client: Client, steps: Steps) -> None:
    """Do the work in a coroutine, on any event loop."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await _wait(client, step)
            except BaseException as error:  # the work decides what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration:
        return


async def _wait(client: Client, step: Step) -> Any:
    if isinstance(step, Pause):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(step.waiter), step.seconds)
        return None
    loop = client.loop.asyncio_loop
    if loop is asyncio.get_running_loop():
        return await step()

    async def on_its_loop() -> Any:
        return await step()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(on_its_loop(), loop))

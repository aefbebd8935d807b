"""Calls of a client to the scheduler and to workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from distributed import Client, get_client
from distributed.comm.core import CommClosedError

from dask_elastic.runtime.client.deadline import ANSWER_SECONDS, NoAnswer, answered
from dask_elastic.runtime.protocol.calls import HOSTED, A, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.remote_errors import text_of
from dask_elastic.vocab.errors import SchedulerLost, SubmitError, UnknownJob

LOOK_SECONDS = 0.25
"""Seconds between two looks whether the client still has its scheduler: Dask has no event for the loss."""

CONNECTED = "running"
"""The status of a client that is connected to its scheduler."""

_hosted_clients: WeakSet[Client] = WeakSet()
"""Clients whose scheduler hosts dask_elastic, as far as is known."""


_flushing: WeakSet[Client] = WeakSet()
"""Clients that close and flush first."""


def checked_client(given: Client | None) -> Client:
    """Return the client that a user gives, or the current one.

    Raises
    ------
    TypeError
        If the user gives something else, such as the address of a scheduler, or calls on the client's event loop.
    SubmitError
        If the user gives none, and there is none.
    """
    if isinstance(given, Client):
        check_blocking(given)
        return given
    if given is not None:
        made = f"Client({given!r})" if isinstance(given, str) else "Client(cluster)"
        raise TypeError(
            f"client is {given!r}, of type {type(given).__name__}: give a client of the cluster, "
            f"dask.distributed.{made}"
        )
    try:
        client: Client = get_client()
    except ValueError as error:
        raise SubmitError("there is no Dask client: create one with dask.distributed.Client(), or pass it") from error
    check_blocking(client)
    return client


def check_blocking(client: Client) -> None:
    """Raise on the event loop of a client, where a call that blocks would never get its answer.

    Raises
    ------
    TypeError
        If it is called there, as programs with ``Client(asynchronous=True)`` do.
    """
    if client.asynchronous:
        raise TypeError(
            "this client is asynchronous, and the call blocks: make it in a thread, as in "
            "`await asyncio.to_thread(dask_elastic.submit, topology, client)`. `await job.asend(...)` needs no thread."
        )


def call_scheduler(client: Client, call: Call[A], deadline: float | None = None) -> A:
    """Call the scheduler of a client's cluster, and return the answer.

    Parameters
    ----------
    client : distributed.Client
        The client.
    call : Call
        The call.
    deadline : float or None
        By the monotonic clock, when the scheduler must have answered; see `answered`. None for no limit.

    Raises
    ------
    TypeError
        On the event loop of the client.
    TimeoutError
        If there is no answer; the scheduler may still do what it was called for.
    UnknownJob
        If the scheduler does not host dask_elastic.
    SchedulerLost
        If the client has lost the scheduler, also while it waits for the answer.
    ElasticError
        The error that the scheduler answers with.
    """
    check_blocking(client)
    check_connected(client)
    try:
        return read_answer(call, _hosted(client.sync(_answer_of_scheduler, client, call, deadline)))
    except NoAnswer as error:
        raise TimeoutError(
            f"the scheduler has not answered within the timeout, or {ANSWER_SECONDS:g} s if less was left: it hangs, "
            "or the network does. When it works again, it does what it was called for."
        ) from error


def call_worker(client: Client, address: str, call: Call[A]) -> A:
    """Call a worker of a client's cluster, and return the answer; raises as `call_scheduler` does."""
    check_blocking(client)
    return read_answer(call, _hosted(client.sync(_send, client.rpc(address), call)))


async def ask_scheduler(client: Client, call: Call[A]) -> A:
    """Call the scheduler on the event loop of the client; raises as `call_scheduler` does."""
    return read_answer(call, _hosted(await _send_to_scheduler(client, call)))


def check_connected(client: Client) -> None:
    """Raise unless a client is connected to its scheduler; Dask's own calls would try to connect for a long time.

    Raises
    ------
    SchedulerLost
        If it is not connected.
    """
    if client.status != CONNECTED and not (client in _flushing and _has_open_comm(client)):
        raise scheduler_lost(client, f"the client is {client.status}")


def check_open(client: Client) -> None:
    """Raise if a client is closed, so that its event loop takes nothing more.

    Raises
    ------
    SchedulerLost
        If it is.
    """
    if client.status == "closed":
        raise scheduler_lost(client, "the client is closed")


@contextlib.contextmanager
def flushing(client: Client) -> Iterator[None]:
    """Let a client that is closing call its scheduler as long as the connection is open.

    Dask calls a client closing before it lets extensions flush.
    """
    _flushing.add(client)
    try:
        yield
    finally:
        _flushing.discard(client)


def _has_open_comm(client: Client) -> bool:
    batched = client.scheduler_comm
    return batched is not None and batched.comm is not None and not batched.comm.closed()


def scheduler_lost(client: Client, reason: str) -> SchedulerLost:
    """Return the error for a client that has lost its scheduler."""
    if client.status in ("closing", "closed"):
        return SchedulerLost(
            f"the client is {client.status}, by the program or since it has lost the scheduler. Connect another one: "
            "if the scheduler runs, dask_elastic.job(name, client) finds its jobs. If it has ended, so have its jobs: "
            "submit them again, or continue those that took checkpoints with dask_elastic.resume(folder, client)."
        )
    address = "its scheduler" if client.scheduler is None else f"the scheduler {client.scheduler.address}"
    return SchedulerLost(
        f"the client has no connection to {address} ({reason}). If the scheduler has ended, so have its jobs: "
        "connect to a new one, and submit them again, or continue those that took checkpoints with "
        "dask_elastic.resume(folder, client). Otherwise the client reconnects by itself for a while."
    )


async def _answer_of_scheduler(client: Client, call: Call[Any], deadline: float | None) -> Any:
    return await answered(_send_to_scheduler(client, call), deadline)


async def _send_to_scheduler(client: Client, call: Call[Any]) -> Any:
    check_connected(client)
    sending = asyncio.ensure_future(_send_if_hosted(client, call))
    try:
        while not (await asyncio.wait({sending}, timeout=LOOK_SECONDS))[0]:
            check_connected(client)
        return sending.result()
    except CommClosedError as error:
        raise scheduler_lost(client, text_of(error)) from error
    finally:
        sending.cancel()


async def _send_if_hosted(client: Client, call: Call[Any]) -> Any:
    """Call the scheduler; return None without a call if it does not host dask_elastic."""
    if client not in _hosted_clients:
        if await client.scheduler.get_metadata(keys=[HOSTED], default=None) is None:
            return None
        _hosted_clients.add(client)
    reply = await _send(client.scheduler, call)
    if not is_reply(reply):  # uninstalled since
        _hosted_clients.discard(client)
    return reply


async def _send(rpc: Any, call: Call[Any]) -> Any:
    return await getattr(rpc, call.operation)(**message_of(call))


def _hosted(reply: Any) -> dict[str, Any]:
    if not is_reply(reply):
        raise UnknownJob(
            "this cluster does not host dask_elastic: no job was ever submitted to it. Submit one with "
            "dask_elastic.submit, or start its scheduler and workers with --preload dask_elastic_plugins.install. If "
            "submit raises this, the scheduler's log says why it cannot host dask_elastic."
        )
    found: dict[str, Any] = reply
    return found

"""Calls of a client to the scheduler and to workers."""

from __future__ import annotations

from typing import Any

from distributed import Client, get_client

from dask_elastic.runtime.protocol.calls import A, Call, is_reply, message_of, read_answer
from dask_elastic.vocab.errors import SubmitError, UnknownJob


def checked_client(given: Client | None) -> Client:
    """Return the client that a user gives, or the current one.

    Raises
    ------
    TypeError
        If the user gives something else, such as the address of a scheduler.
    SubmitError
        If the user gives none, and there is none.
    """
    if isinstance(given, Client):
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
    return client


def call_scheduler(client: Client, call: Call[A]) -> A:
    """Call the scheduler of a client's cluster, and return the answer.

    Raises
    ------
    UnknownJob
        If the scheduler does not host dask_elastic.
    ElasticError
        The error that the scheduler answers with.
    """
    return read_answer(call, _hosted(client.sync(_send, client.scheduler, call)))


def call_worker(client: Client, address: str, call: Call[A]) -> A:
    """Call a worker of a client's cluster, and return the answer; raises as `call_scheduler` does."""
    return read_answer(call, _hosted(client.sync(_send, client.rpc(address), call)))


async def ask_scheduler(client: Client, call: Call[A]) -> A:
    """Call the scheduler on the event loop of the client; raises as `call_scheduler` does."""
    return read_answer(call, _hosted(await _send(client.scheduler, call)))


async def _send(rpc: Any, call: Call[Any]) -> Any:
    return await getattr(rpc, call.operation)(**message_of(call))


def _hosted(reply: Any) -> dict[str, Any]:
    if not is_reply(reply):
        raise UnknownJob("this cluster does not host dask_elastic: no job was ever submitted to it")
    found: dict[str, Any] = reply
    return found

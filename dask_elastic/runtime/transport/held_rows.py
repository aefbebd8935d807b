"""Fetches rows that a worker holds, for a client that has got their handle from a Dask queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.protocol.calls import A, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.codec import Payload

if TYPE_CHECKING:
    from distributed import Client

LOOK_SECONDS = 1.0
"""Seconds between two looks whether the worker is still part of the cluster."""


async def fetch_held(client: Client, address: str, call: Call[Payload]) -> Payload:
    """Ask a worker for rows.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    address : str
        The worker.
    call : Call of Payload
        Names the rows.

    Returns
    -------
    Payload
        The rows as an Arrow IPC stream.

    Raises
    ------
    OSError
        If the scheduler has lost the worker, to which Dask would try to connect for long.
    """
    asking = asyncio.ensure_future(ask_server(client.rpc(address), call))
    try:
        while not (await asyncio.wait({asking}, timeout=LOOK_SECONDS))[0]:
            identity = await client.scheduler.identity()
            if address not in identity["workers"]:
                raise OSError("the scheduler has lost it")
        return asking.result()
    finally:
        asking.cancel()


async def ask_server(server: Any, call: Call[A]) -> A:
    """Call a worker or the scheduler over one of Dask's RPC objects, and return the answer.

    Raises
    ------
    OSError
        If it does not host dask_elastic any more.
    """
    reply = await getattr(server, call.operation)(**message_of(call))
    if not is_reply(reply):
        raise OSError("it does not host dask_elastic any more")
    return read_answer(call, reply)

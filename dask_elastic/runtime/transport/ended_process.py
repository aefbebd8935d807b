"""Whether the process of a worker has ended."""

from __future__ import annotations

import asyncio

from distributed.comm.addressing import get_address_host_port

KNOCK_SECONDS = 0.2
"""Seconds after which `has_died` takes a process that accepts a connection and sends nothing to be alive."""


async def has_died(address: str) -> bool:
    """Return whether the process of a worker has ended; one that hangs, or cannot be reached, may be alive.

    Notes
    -----
    A process that is ending may still accept a connection, but closes it without sending anything. A worker that runs
    sends first on plain TCP; with TLS it waits for the client's greeting. One that hangs keeps the connection open.
    """
    if address.partition("://")[0] not in ("tcp", "tls"):
        return False
    host, port = get_address_host_port(address)
    writer = None
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            return not await reader.read(1)
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()

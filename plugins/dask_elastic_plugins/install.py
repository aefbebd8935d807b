"""Registers the plugins on a cluster, from a client or as a preload.

As a preload: ``dask scheduler --preload dask_elastic_plugins.install`` and
``dask worker --preload dask_elastic_plugins.install``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import dask.config
from distributed import Scheduler, Worker
from distributed.core import Status
from distributed.protocol.pickle import dumps

from dask_elastic.runtime.protocol.calls import Version, is_reply

if TYPE_CHECKING:
    from distributed import Client

PATIENCE = 4.0
"""Seconds after which the registration looks for workers that hang, and between two looks."""

PING_SECONDS = 2.0
"""Seconds within which a worker that does not hang answers."""

SETUP_SECONDS = 30.0
"""Seconds after which a plugin that is still being set up on some worker, while another hangs, is no longer awaited."""

FORWARD_SECONDS = 0.01
"""Seconds that the scheduler has to send the plugin to workers, before the client goes on with imports of its own."""

REMOVAL_SECONDS = 10.0
"""Seconds after which the removal of the plugin looks for workers that hang, and waits no longer."""

_installed: WeakSet[Client] = WeakSet()
"""Clients that have registered both plugins."""


def _plugin(option: str) -> Any:
    module, _, name = dask.config.get(f"elastic.{option}").rpartition(".")
    return getattr(importlib.import_module(module), name)()


def install(client: Client) -> None:
    """Register both plugins on a client's cluster; has no effect if they are already registered.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster. Workers that join later get the plugin, too.
    """
    begin_install(client)()


def begin_install(client: Client) -> Callable[[], None]:
    """Begin to register both plugins on a client's cluster: workers in other processes import the engine meanwhile.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Returns
    -------
    callable
        Registers what is missing, and waits until scheduler and workers host dask_elastic.
    """
    on_workers: list[asyncio.Future[Any]] = []
    if not _has_workers():
        # In one process, two threads that begin with different modules of the engine would fail each other's imports.
        client.sync(_begin, client, on_workers)
    return lambda: client.sync(_register, client, on_workers)


def _has_workers() -> bool:
    """Return whether workers run in this process."""
    return any(worker.status is not Status.closed for worker in list(Worker._instances))


async def _begin(client: Client, on_workers: list[asyncio.Future[Any]]) -> None:
    """Send the plugin to the workers, and note its registration, unless they have it already."""
    if client in _installed:
        return
    with contextlib.suppress(TimeoutError):
        # The scheduler connects to the workers now: while it imports what it needs, it would not.
        asking = client.scheduler.broadcast(msg={"op": "echo"}, on_error="ignore")
        await asyncio.wait_for(asking, PING_SECONDS)
    registering = asyncio.ensure_future(client.register_plugin(_plugin("worker-plugin")))
    # A submission may be refused before it waits for this.
    registering.add_done_callback(lambda done: done.cancelled() or done.exception())
    on_workers.append(registering)
    await asyncio.wait({registering}, timeout=FORWARD_SECONDS)


async def _register(client: Client, on_workers: list[asyncio.Future[Any]]) -> None:
    """Register plugins; Dask's registration waits for every worker, this one not for workers that hang."""
    # Workers first: they import the engine while the scheduler does.
    to_workers = on_workers or [client.register_plugin(_plugin("worker-plugin"))]
    registering = asyncio.gather(*to_workers, client.register_plugin(_plugin("scheduler-plugin")))
    deadline = time.monotonic() + SETUP_SECONDS
    try:
        while not (await asyncio.wait({registering}, timeout=PATIENCE))[0]:
            answers = await _pings(client)
            hosting = all(answer is None or is_reply(answer[0]) for answer in answers)
            if None in answers and (hosting or time.monotonic() > deadline):
                return  # The scheduler goes on: workers that hang get the plugin when they continue.
        await registering
        _installed.add(client)
    finally:
        registering.cancel()
        await asyncio.wait({registering})
        if not registering.cancelled():
            # Otherwise asyncio logs that no code has retrieved it.
            registering.exception()


async def _pings(client: Client) -> list[tuple[Any] | None]:
    addresses = await client.scheduler.ncores(workers=None)
    return await asyncio.gather(*(_ping(client, address) for address in addresses))


async def _ping(client: Client, address: str) -> tuple[Any] | None:
    """Return the answer of a worker that is asked for its version, None if it hangs."""
    message = {"op": Version.operation}
    asking = client.scheduler.broadcast(msg=message, workers=[address], on_error="ignore")
    try:
        answers = await asyncio.wait_for(asking, PING_SECONDS)
    except TimeoutError:
        return None
    return (answers[address],) if address in answers else None


def uninstall(client: Client) -> None:
    """Stop all jobs, and remove both plugins from a client's cluster.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Raises
    ------
    RuntimeError
        If the scheduler does not host dask_elastic.

    Warns
    -----
    UserWarning
        If workers do not answer, with their addresses. They remove the plugin when they continue.
    """
    client.sync(_uninstall_scheduler, client)
    with contextlib.suppress(ValueError):  # the plugin was not registered
        client.unregister_scheduler_plugin(_plugin("scheduler-plugin").name)
    silent = client.sync(_uninstall_workers, client)
    if silent:
        warnings.warn(
            f"dask_elastic is removed from all workers but {', '.join(silent)}: they do not answer, and remove it when "
            "they continue.",
            stacklevel=2,
        )


async def _uninstall_scheduler(client: Client) -> None:
    if await client.scheduler.elastic_uninstall() is not None:
        raise RuntimeError("the scheduler does not host dask_elastic")


async def _uninstall_workers(client: Client) -> list[str]:
    """Remove the plugin from all workers; returns the addresses of those that hang."""
    try:
        await asyncio.wait_for(client.unregister_worker_plugin(_plugin("worker-plugin").name), REMOVAL_SECONDS)
    except ValueError:
        return []  # the plugin was not registered
    except TimeoutError:
        addresses = await client.scheduler.ncores(workers=None)
        alive = await asyncio.gather(*(_is_alive(client, address) for address in addresses))
        return [address for address, is_alive in zip(addresses, alive, strict=True) if not is_alive]
    return []


async def _is_alive(client: Client, address: str) -> bool:
    """Return whether a worker answers, whether or not it hosts dask_elastic."""
    asking = client.scheduler.broadcast(msg={"op": "identity"}, workers=[address], on_error="ignore")
    try:
        return address in await asyncio.wait_for(asking, PING_SECONDS)
    except TimeoutError:
        return False


async def dask_setup(server: Scheduler | Worker) -> None:
    """Register the plugin on a scheduler or worker that was started with ``--preload``."""
    if isinstance(server, Scheduler):
        await server.register_scheduler_plugin(_plugin("scheduler-plugin"), idempotent=True)
        # Idempotent: a client's `install` then finds the plugin registered and does not replace it on the workers.
        plugin = _plugin("worker-plugin")
        await server.register_worker_plugin(None, dumps(plugin), plugin.name, idempotent=True)
    elif isinstance(server, Worker):
        await server.plugin_add(_plugin("worker-plugin"))
        _import_for_jobs()


def _import_for_jobs() -> None:
    """Import what a job's part needs, so that the first job does not have to wait for it."""
    for kind in ("sources", "sinks"):
        connectors = importlib.import_module(f"dask_elastic.connectors.{kind}")
        for name in connectors.__all__:
            getattr(connectors, name)
    # Its hash table is the fastest index; a job would use it only if its worker has imported pandas before.
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")

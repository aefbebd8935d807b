"""Registers the plugins on a cluster, from a client or as a preload.

As a preload: ``dask scheduler --preload dask_elastic_plugins.install`` and
``dask worker --preload dask_elastic_plugins.install``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Scheduler, Worker
from distributed.protocol.pickle import dumps

from dask_elastic.runtime.config.job_options import load_defaults

if TYPE_CHECKING:
    from distributed import Client

# A preload comes before anything else has imported dask_elastic.
load_defaults()


def _plugin(option: str) -> Any:
    module, _, name = dask.config.get(f"elastic.{option}").rpartition(".")
    return getattr(importlib.import_module(module), name)()


def install(client: Client) -> None:
    """Register both plugins on a client's cluster; harmless where they are there already.

    Parameters
    ----------
    client : distributed.Client
        The cluster. Workers that join later get the plugin, too.
    """
    client.register_plugin(_plugin("scheduler-plugin"))
    client.register_plugin(_plugin("worker-plugin"))


def uninstall(client: Client) -> None:
    """Stop every job and leave the cluster as if dask_elastic had never been there.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    """
    client.sync(_uninstall_scheduler, client)
    for option, unregister in (
        ("scheduler-plugin", client.unregister_scheduler_plugin),
        ("worker-plugin", client.unregister_worker_plugin),
    ):
        try:
            unregister(_plugin(option).name)
        except ValueError:
            continue  # it was not registered


async def _uninstall_scheduler(client: Client) -> None:
    if await client.scheduler.elastic_uninstall() is not None:
        raise RuntimeError("the scheduler does not host dask_elastic")


async def dask_setup(server: Scheduler | Worker) -> None:
    """Set up a scheduler or worker that was started with ``--preload``."""
    if isinstance(server, Scheduler):
        await server.register_scheduler_plugin(_plugin("scheduler-plugin"), idempotent=True)
        # So that a client's `install` finds it and leaves what runs on the workers alone.
        plugin = _plugin("worker-plugin")
        await server.register_worker_plugin(None, dumps(plugin), plugin.name, idempotent=True)
    elif isinstance(server, Worker):
        await server.plugin_add(_plugin("worker-plugin"))

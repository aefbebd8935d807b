"""The worker plugin: adapts `NodeRuntime` to Dask's hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from distributed.diagnostics.plugin import WorkerPlugin

from dask_elastic.runtime.config.many_imports import many_imports
from dask_elastic.runtime.config.own_process import leave_out_worker_modules

if TYPE_CHECKING:
    from distributed import Worker

    from dask_elastic.runtime.worker.node import NodeRuntime

logger = logging.getLogger("dask_elastic.node")


class ElasticWorkerPlugin(WorkerPlugin):
    """Hosts executors in a Dask worker.

    Notes
    -----
    The runtime's modules are imported when it starts: clients import this module only to send the plugin.
    """

    name = "dask-elastic-worker"
    idempotent = True

    def __init__(self) -> None:
        self.runtime: NodeRuntime | None = None

    async def setup(self, worker: Worker) -> None:
        """Start the node's runtime, which registers its handlers with the worker."""
        try:
            with many_imports():
                from dask_elastic.runtime.worker.node import NodeRuntime

            leave_out_worker_modules(worker.nanny is not None, worker.state.executed_count)
            runtime = NodeRuntime(worker)
            await runtime.start()
            self.runtime = runtime
        except Exception:  # a worker that cannot host dask_elastic must still run
            logger.exception("dask_elastic could not be set up on worker %s", worker.address)

    async def teardown(self, worker: Worker) -> None:
        """Close the node's runtime."""
        if self.runtime is not None:
            runtime, self.runtime = self.runtime, None
            await runtime.close()

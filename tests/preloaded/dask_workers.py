"""Imported by the process from which the workers of a test's own clusters are forked, so that none imports it again.

It is what a user's worker imports when the plugin starts. Pandas is not: a job whose worker has imported it uses
another index.
"""

from __future__ import annotations

import gc
import importlib

for name in (
    "distributed.nanny",
    "dask_elastic_plugins.install",
    "dask_elastic_plugins.worker",
    "dask_elastic.runtime.worker.node",
    "dask_elastic.connectors.sources.arrow",
    "dask_elastic.connectors.sinks.collect",
):
    importlib.import_module(name)

# A collection in a worker would otherwise write to all these objects, and so copy their memory.
gc.collect()
gc.freeze()

"""Lets the process from which Spark's Python workers are forked import what each of them would import."""

from __future__ import annotations

import gc
import importlib
import sys

LAST_ARGUMENT = sys.orig_argv[-1]
"""Of Spark's daemon, the module that its workers run."""

# The one that looks for data sources has one worker, which needs no other module.
if "pyspark.daemon" in sys.orig_argv and not LAST_ARGUMENT.endswith("lookup_data_sources"):
    for name in ("pandas", "pyarrow", LAST_ARGUMENT, "dask_elastic.spark.data_source"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()

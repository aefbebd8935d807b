"""Spark: start a session, prepare recordings, send rows of batches and queries to a running job, project costs.

Each name is imported when it is used first: Spark's Python workers need few modules, and each worker imports its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_elastic.spark.epoch_handoff import drain, handoff, into, register
    from dask_elastic.spark.failure import SparkFailed
    from dask_elastic.spark.spark_chain import projected_costs
    from dask_elastic.spark.spark_session import session

__all__ = ["SparkFailed", "drain", "handoff", "into", "projected_costs", "register", "session"]

_DEFINED_IN = {
    "SparkFailed": "failure",
    "drain": "epoch_handoff",
    "handoff": "epoch_handoff",
    "into": "epoch_handoff",
    "projected_costs": "spark_chain",
    "register": "epoch_handoff",
    "session": "spark_session",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

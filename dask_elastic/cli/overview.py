"""Converts a job's description to plain values, which ``status`` shows as a table or as JSON."""

from __future__ import annotations

import time
from typing import Any

from dask_elastic.runtime.protocol.remote_errors import load_error

EXECUTOR_VALUES = (
    "operator", "executor", "cores", "arrival_rate", "service_rate", "queue", "latency_p50", "latency_p99",
    "state_bytes", "rows", "moves", "moves_across",
)  # fmt: skip

CONTROL_VALUES = (
    "latency_target", "planner", "paradigm", "dry_run", "predicted", "feasible", "starved", "bound", "decided",
    "decided_at", "control_error",
)  # fmt: skip
ADDED_UP = ("cores", "queue", "state_bytes", "moves", "moves_across")


def overview(described: dict[str, Any]) -> dict[str, Any]:
    """Convert a job's description to values that JSON can represent.

    Parameters
    ----------
    described : dict
        The job's description, as the scheduler returns it.

    Returns
    -------
    dict
        Times in seconds, rates in tuples per second, sizes in bytes; None for what was not measured. Latencies are
        those of the slowest executor.
    """
    executors = [
        _executor(described["nodes"], measure)
        for measure in sorted(described["executors"], key=lambda measure: (measure["operator"], measure["executor"]))
    ]
    return {
        "name": described["name"],
        "status": described["status"],
        "error": None if described["error"] is None else error_text(described["error"]),
        "began": described["began"],
        "ended": described["ended"],
        "seconds": (described["ended"] or time.time()) - described["began"],
        "rows": sum(rows for _, _, rows in described["sources"]),
        "arrival_rate": sum(e["arrival_rate"] for e in executors) if described["ended"] is None else 0.0,
        "latency_p50": _largest(executors, "latency_p50"),
        "latency_p99": _largest(executors, "latency_p99"),
        **{name: sum(e[name] for e in executors) for name in ADDED_UP},
        "dead_letters": dict(described["dead_letters"]),
        "handoffs": described["handoffs"],
        "oversubscribed": described["oversubscribed"],
        **{name: described[name] for name in CONTROL_VALUES},
        "executors": executors,
    }


def _executor(nodes: list[str], measure: dict[str, Any]) -> dict[str, Any]:
    label = f"{measure['operator']}[{measure['executor']}]"
    return {"id": label, "node": nodes[measure["node"]], **{name: measure[name] for name in EXECUTOR_VALUES}}


def _largest(executors: list[dict[str, Any]], name: str) -> float | None:
    return max((e[name] for e in executors if e[name] is not None), default=None)


def error_text(data: bytes) -> str:
    """Return the text of a job's pickled error, even if its class is not installed here."""
    try:
        error = load_error(data)
    except Exception as problem:  # unpickling runs code of the error's class, which may raise anything
        return f"an error that cannot be unpickled here ({type(problem).__name__}: {problem})"
    return str(error)

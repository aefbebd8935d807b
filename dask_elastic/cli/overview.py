"""Converts a job's description to plain values, which ``status`` shows as a table or as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.remote_errors import error_text
from dask_elastic.runtime.protocol.reports import ExecutorReport

EXECUTOR_VALUES = (
    "operator", "executor", "cores", "arrival_rate", "service_rate", "queue", "latency_p50", "latency_p99",
    "state_bytes", "rows", "moves", "moves_across",
)  # fmt: skip

OPTION_VALUES = ("latency_target", "planner", "paradigm", "dry_run")
ADDED_UP = ("cores", "queue", "state_bytes", "moves", "moves_across")


def overview(described: JobDescription) -> dict[str, Any]:
    """Convert a job's description to values that JSON can represent.

    Parameters
    ----------
    described : JobDescription
        The job's description, as the scheduler returns it.

    Returns
    -------
    dict
        Times in seconds, rates in tuples per second, sizes in bytes; None for what was not measured. Latencies are
        those of the slowest executor.
    """
    executors = [
        _executor(described.nodes, measure)
        for measure in sorted(described.executors, key=lambda measure: (measure.operator, measure.executor))
    ]
    return {
        "name": described.name,
        "status": described.status.value,
        "error": None if described.error is None else error_text(described.error),
        "began": described.began,
        "ended": described.ended,
        "seconds": (described.ended or time.time()) - described.began,
        "rows": described.rows_read,
        "source_rate": described.source_rate,
        "latency_p50": _largest(executors, "latency_p50"),
        "latency_p99": _largest(executors, "latency_p99"),
        **{name: sum(e[name] for e in executors) for name in ADDED_UP},
        "dead_letters": dict(described.dead_letters),
        "handoffs": [asdict(progress) for progress in described.handoffs],
        "checkpoints": None if described.checkpoints is None else asdict(described.checkpoints),
        "oversubscribed": described.oversubscribed,
        **{name: getattr(described, name) for name in OPTION_VALUES},
        **{**vars(described.control), "bound": list(described.control.bound)},
        "executors": executors,
    }


def _executor(nodes: Sequence[str], measure: ExecutorReport) -> dict[str, Any]:
    label = f"{measure.operator}[{measure.executor}]"
    return {"id": label, "node": nodes[measure.node], **{name: getattr(measure, name) for name in EXECUTOR_VALUES}}


def _largest(executors: list[dict[str, Any]], name: str) -> float | None:
    return max((e[name] for e in executors if e[name] is not None), default=None)

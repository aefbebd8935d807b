"""What a worker tells the scheduler of its part of a job, as plain values."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.runtime.event_time_view import event_times
from dask_elastic.runtime.intake import Intake
from dask_elastic.vocab.errors import ElasticError, JobFailed

if TYPE_CHECKING:
    from dask_elastic.runtime.deployment import Deployment


def part_report(deployment: Deployment) -> dict[str, Any]:
    """Everything of interest; each report replaces the one before."""
    try:
        measures = deployment.measures()
    except Exception as error:  # what cannot be measured is the job's error, which this very report has to tell
        deployment.fail(error)
        measures = []
    return {
        "complete": deployment.complete,
        "error": None if deployment.error is None else dump_error(deployment.error),
        "executors": [_measure(measure) for measure in measures],
        "details": [_detail(measure) for measure in measures],
        "sources": [[*source.identity, source.rows] for source in deployment.sources.values()],
        "staged": [
            [source.identity.component, source.mailbox.memory, source.mailbox.spilled]
            for source in deployment.sources.values()
            if isinstance(source.mailbox, Intake)
        ],
        "sinks": [[*sink.identity, sink.rows] for sink in deployment.sinks.values()],
        "event_times": event_times(deployment),
        "dead_letters": dict(deployment.dead_letters.counts),
        "refused": deployment.messages_refused,
        "lost": sorted(deployment.lost),
        "absolved": deployment.absolved,
    }


def _measure(measure: ExecutorMeasure) -> dict[str, Any]:
    """Return what anybody may ask for."""
    return {
        "operator": measure.executor.component,
        "executor": measure.executor.index,
        "node": measure.node,
        "cores": sum(measure.cores.values()),
        "cores_by_node": [list(item) for item in sorted(measure.cores.items())],
        "arrival_rate": measure.arrival_rate,
        "throughput": measure.throughput,
        "service_rate": measure.service_rate,
        "customer_rows": measure.customer_rows,
        "bytes_in": measure.bytes_in,
        "bytes_out": measure.bytes_out,
        "queue": measure.queue_rows,
        "sojourn": measure.sojourn,
        "latency": measure.latency.to_bytes(),
        "latency_p50": measure.latency.quantile(0.5),
        "latency_p99": measure.latency.quantile(0.99),
        "state_bytes": measure.state_bytes,
        "rows": measure.rows,
        "moves": measure.moves,
        "moves_across": measure.moves_across,
        "pending_bytes": measure.pending_bytes,
        "refused": measure.refused,
        "recovered": measure.recovered,
        "recovery_p50": None if measure.recovery is None else measure.recovery[0],
        "recovery_p99": None if measure.recovery is None else measure.recovery[1],
        "event_time": measure.event_time,
    }


def _detail(measure: ExecutorMeasure) -> dict[str, Any]:
    """Return what only decisions are made from: the newest latencies, and the shards as four bytes a number."""
    return {
        "latency_now": measure.latency_now.to_bytes(),
        "latency_mean": measure.latency_mean,
        "latency_rows": measure.latency_rows,
        "shard_load": measure.shard_load.astype("<f4").tobytes(),
        "shard_bytes": measure.shard_bytes.astype("<f4").tobytes(),
        "jumps": measure.jumps,
    }


def has_jumped(report: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Tell whether the load of some executor's shards has jumped since the report before."""
    return before is not None and _jumps(report) > _jumps(before)


def _jumps(report: Mapping[str, Any]) -> int:
    return sum(detail["jumps"] for detail in report["details"])


class Relayed(Exception):
    """An error that came as bytes and goes on as bytes: who passes it on need not know its class.

    Parameters
    ----------
    data : bytes
        What `dump_error` made of it.
    """

    def __init__(self, data: bytes):
        super().__init__("an error of another process")
        self.data = data


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes; one that cannot be pickled goes as its text."""
    if isinstance(error, Relayed):
        return error.data
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception as reason:  # any class of a user's may fail to pickle in any way; its text is what is left
        data = pickle.dumps(JobFailed(f"{type(error).__name__}: {error} (the error itself cannot be sent: {reason!r})"))
    return data


def load_error(data: bytes) -> BaseException:
    """Return the inverse of `dump_error`, on the client."""
    error = pickle.loads(data)
    return error if isinstance(error, BaseException) else ElasticError(str(error))

"""What a worker tells the scheduler of its part of a job, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.event_times import event_times

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart


def part_report(job_part: JobPart) -> dict[str, Any]:
    """Everything of interest; each report replaces the one before."""
    try:
        measures = job_part.measures()
    except Exception as error:  # what cannot be measured is the job's error, which this very report has to tell
        job_part.fail(error)
        measures = []
    return {
        "complete": job_part.complete,
        "error": None if job_part.error is None else dump_error(job_part.error),
        "executors": [_measure(measure) for measure in measures],
        "details": [_detail(measure) for measure in measures],
        "sources": [[*source.identity, source.rows] for source in job_part.sources.values()],
        "staged": [
            [source.identity.component, source.mailbox.memory, source.mailbox.spilled]
            for source in job_part.sources.values()
            if isinstance(source.mailbox, EpochBuffer)
        ],
        "sinks": [[*sink.identity, sink.rows] for sink in job_part.sinks.values()],
        "event_times": event_times(job_part),
        "dead_letters": dict(job_part.dead_letters.counts),
        "refused": job_part.messages_refused,
        "lost": sorted(job_part.members.lost),
        "absolved": job_part.suspects_cleared,
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

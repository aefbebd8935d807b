"""The report of a worker about its part of a job."""

from __future__ import annotations

from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.protocol.reports import (
    EdgeRate,
    ExecutorDetail,
    ExecutorReport,
    InputTypes,
    InstanceRows,
    PartReport,
    StagedBytes,
)
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.event_times import event_times
from dask_elastic.runtime.worker.job_part import JobPart
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.vocab.group_flow import GroupFlow


def part_report(job_part: JobPart) -> PartReport:
    """Return a report about a job's part."""
    try:
        measures = job_part.measures()
    except Exception as error:  # becomes the job's error, which this report carries
        job_part.fail(error)
        measures = []
    return PartReport(
        complete=job_part.complete,
        error=None if job_part.error is None else dump_error(job_part.error),
        executors=tuple(_executor(measure, job_part.exchange.backpressured(measure.executor)) for measure in measures),
        details=tuple(map(_detail, measures)),
        sources=tuple(map(_source, job_part.sources.values())),
        staged=tuple(
            StagedBytes(source.identity.component, source.mailbox.memory, source.mailbox.spilled)
            for source in job_part.sources.values()
            if isinstance(source.mailbox, EpochBuffer)
        ),
        sinks=tuple(
            InstanceRows(*sink.identity, sink.rows, sink.rows_per_second(), sink.busy())
            for sink in job_part.sinks.values()
        ),
        event_times=event_times(job_part),
        unions=tuple(
            InputTypes(identity.component, union.first)
            for identity, home in list(job_part.homes.items())
            if (union := home.executor.store.union) is not None and union.first is not None
        ),
        dead_letters=dict(job_part.dead_letters.counts),
        refused=job_part.messages_refused,
        lost=tuple(sorted(job_part.members.lost)),
        absolved=job_part.suspects_cleared,
        edges=tuple(EdgeRate(*edge, rate) for edge, rate in job_part.edge_rates().items()),
        stalled=job_part.threads.user_calls.longer_than(job_part.spec.options.stall_after, job_part.spec.node),
    )


def _source(source: SourceThread) -> InstanceRows:
    return InstanceRows(
        *source.identity,
        source.rows,
        source.rows_per_second(),
        source.busy(),
        source.exchange.backpressured(source.identity),
        source.lag(),
    )


def _executor(measure: ExecutorMeasure, backpressured: float) -> ExecutorReport:
    recovery = measure.recovery or (None, None)
    return ExecutorReport(
        operator=measure.executor.component,
        executor=measure.executor.index,
        node=measure.node,
        cores=sum(measure.cores.values()),
        arrival_rate=measure.arrival_rate,
        throughput=measure.throughput,
        service_rate=measure.service_rate,
        customer_rows=measure.customer_rows,
        bytes_in=measure.bytes_in,
        bytes_out=measure.bytes_out,
        queue=measure.queue_rows,
        sojourn=measure.sojourn,
        latency_p50=measure.latency.quantile(0.5),
        latency_p99=measure.latency.quantile(0.99),
        state_bytes=measure.state_bytes,
        rows=measure.rows,
        moves=measure.moves,
        moves_across=measure.moves_across,
        pending_bytes=measure.pending_bytes,
        refused=measure.refused,
        recovered=measure.recovered,
        recovery_p50=recovery[0],
        recovery_p99=recovery[1],
        event_time=measure.event_time,
        busy=float(measure.shard_load.sum()),
        backpressured=backpressured,
        state_on_disk=measure.state_on_disk,
        windows=measure.windows,
        open_windows=measure.open_windows,
        window_costs=measure.window_costs,
        separate=measure.separate,
        computes=measure.computes,
        hop=measure.hop,
        enough_cores=measure.enough_cores,
    )


def _detail(measure: ExecutorMeasure) -> ExecutorDetail:
    """Return the measures for the control loop; those of shards take four bytes each."""
    load = measure.shard_load if measure.arriving_load is None else measure.arriving_load
    return ExecutorDetail(
        latency_now=measure.latency_now.to_bytes(),
        latency_mean=measure.latency_mean,
        latency_rows=measure.latency_rows,
        shard_load=load.astype("<f4").tobytes(),
        shard_bytes=measure.shard_bytes.astype("<f4").tobytes(),
        jumps=measure.jumps,
        traffic=tuple((*origin, rate) for origin, rate in measure.traffic),
        flows=tuple(map(_flow, measure.flows)),
    )


def _flow(flow: GroupFlow) -> tuple[str, bytes, bytes, bytes]:
    arrays = flow.source.astype("<i4"), flow.target.astype("<i4"), flow.rate.astype("<f4")
    source, target, rate = (array.tobytes() for array in arrays)
    return flow.operator, source, target, rate

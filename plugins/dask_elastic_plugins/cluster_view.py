"""The dashboard's view of a coordinator: a card for each of its jobs."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from dask_elastic.control.job_flow import InstanceLoad, JobFlow, job_flow
from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
from dask_elastic.dashboard.cluster_view import ClusterView, JobCard
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.job_record import JobRecord


def cluster_view(coordinator: Coordinator) -> ClusterView:
    """Return the dashboard's view of a coordinator."""
    controller = coordinator.controller
    return ClusterView(
        history=controller.history,
        list_cards=lambda: (_card(record, coordinator) for record in coordinator.jobs.values()),
        list_decisions=controller.decisions.log.of,
        problem=lambda: controller.error,
    )


def _card(record: JobRecord, coordinator: Coordinator) -> JobCard:
    return JobCard(
        name=record.name,
        status=record.status.value,
        began=record.began,
        oversubscribed=record.oversubscribed,
        error=None if record.error is None else _text(record.error),
        cores=lambda: _cores(record),
        handoffs=lambda: coordinator.epochs.progress(record),
        checkpoints=lambda: _checkpoints(record),
        recoveries=lambda: _recoveries(record),
        flow=lambda: _flow(record),
    )


def _checkpoints(record: JobRecord) -> TakenCheckpoints | None:
    status, kept = record.checkpoint_status(), record.checkpoints
    return None if status is None or kept is None else TakenCheckpoints(status, tuple(kept.descriptions))


def _flow(record: JobRecord) -> JobFlow:
    summaries = record.spec.summaries
    structure = [(summary.name, summary.operators, summary.kinds) for summary in summaries]
    flow = job_flow(structure, record.edge_rates(), _loads(record), record.dead_letters())
    return flow if record.live else flow.at_rest()


def _loads(record: JobRecord) -> Iterator[InstanceLoad]:
    for received in record.reports.values():
        report = received.report
        for one in report.sources:
            yield InstanceLoad(one.operator, 1, one.busy, one.backpressured, one.lag)
        for one in report.sinks:
            yield InstanceLoad(one.operator, 1, one.busy, one.backpressured)
    for measure in record.measures():
        yield InstanceLoad(measure.operator, measure.cores, measure.busy, measure.backpressured)


def _cores(record: JobRecord) -> dict[tuple[str, int], dict[str, int]]:
    """Return the cores of each executor, by node address."""
    nodes = record.nodes
    return {
        executor: {nodes[node]: count for node, count in by_node.items()} for executor, by_node in record.cores.items()
    }


def _recoveries(record: JobRecord) -> dict[tuple[str, int], tuple[int, float | None, float | None]]:
    """Return, for each executor, its number of recoveries, and p50 and p99 of their seconds."""
    return {
        (measure.operator, measure.executor): (measure.recovered, measure.recovery_p50, measure.recovery_p99)
        for measure in record.measures()
    }


@functools.lru_cache(maxsize=64)
def _text(error: bytes) -> str:
    """Return the text of a pickled error, whose class may exist only at the client and the workers."""
    try:
        found = load_error(error)
    except Exception as reason:  # unpickling may raise anything
        return f"the scheduler cannot unpickle the error ({reason}); job.wait() raises it"
    return f"{type(found).__name__}: {found}"

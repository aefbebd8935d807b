"""Snapshots of the cluster: a view is gathered on the event loop, the snapshot is built from it in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_elastic.meters import LatencyHistogram
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.job_spec import VACANT, JobSpec
from dask_elastic.runtime.protocol.reports import ExecutorDetail, ExecutorReport, report_seconds
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord, ReceivedReport
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Inputs, JobSnapshot, NodeSnapshot, Snapshot, SourceHome

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

STALE_PERIODS = 3
"""A report is stale after so many periods, of reports or of the control loop, whichever are longer."""

Measured = tuple[ExecutorReport, ExecutorDetail]
"""The measures of one executor in a report."""

UNMEASURED: Measured = (
    ExecutorReport("", 0, 0, 0, 0.0, 0.0, None, 1.0, 0.0, 0.0, 0, None, None, None, 0, 0, 0, 0),
    ExecutorDetail(b"", None, 0.0, b"", b"", 0),
)
"""The measures of an executor before its first report."""


@dataclass(frozen=True)
class JobView:
    """A job at one moment; immutable.

    Parameters
    ----------
    spec : JobSpec
        The job.
    homes : dict of str to tuple of int
        Home of each executor of each operator.
    cores : dict
        Cores of each executor, by node of the job.
    pinned : frozenset
        Executors whose cores the control loop does not change.
    reports : tuple of ReceivedReport
        The newest report of each node.
    groups : dict of str to GroupTable
        The executor of each key group of each operator, where groups move.
    group_moves : tuple of EndedGroupMove
        The newest moves of key groups, oldest first.
    """

    spec: JobSpec
    homes: dict[str, tuple[int, ...]]
    cores: dict[ExecutorKey, Mapping[int, int]]
    pinned: frozenset[ExecutorKey]
    reports: tuple[ReceivedReport, ...]
    groups: dict[str, GroupTable] = field(default_factory=dict)
    group_moves: tuple[EndedGroupMove, ...] = ()


@dataclass(frozen=True)
class ClusterView:
    """The data from which a snapshot is built.

    Parameters
    ----------
    now : float
        Seconds since the epoch.
    nodes : tuple of NodeSnapshot
        The workers, each at its place.
    jobs : tuple of JobView
        The jobs that run.
    stale_after : float
        Seconds after which a report is stale, unless the job reports more rarely.
    """

    now: float
    nodes: tuple[NodeSnapshot, ...]
    jobs: tuple[JobView, ...]
    stale_after: float

    def snapshot(self, pause: Callable[[], None] = lambda: None) -> Snapshot:
        """Build the snapshot.

        Parameters
        ----------
        pause : callable
            Called after each report and each executor, so that a CPU-bound thread can yield.
        """
        places = {node.address: place for place, node in enumerate(self.nodes)}
        jobs = [view for view in self.jobs if all(address in places for _, address in view.spec.members)]
        return Snapshot(self.now, self.nodes, tuple(self._job(view, places, pause) for view in jobs))

    def holds(self, before: ClusterView) -> bool:
        """Return whether nothing has changed since an earlier view, because all jobs are idle."""
        return all(map(_is_idle, self.jobs)) and self._content() == before._content()

    def _content(self) -> tuple[Any, ...]:
        """Return all that the snapshot is built from, without the times."""
        jobs = [
            (
                view.spec,
                view.homes,
                view.cores,
                view.pinned,
                view.groups,
                view.group_moves,
                [(one.report, self._is_fresh(view, one)) for one in view.reports],
            )
            for view in self.jobs
        ]
        return self.nodes, jobs

    def _is_fresh(self, view: JobView, received: ReceivedReport) -> bool:
        interval = report_seconds(view.spec.options, received.idle)
        return received.at - received.behind >= self.now - max(self.stale_after, STALE_PERIODS * interval)

    def _job(self, view: JobView, places: Mapping[str, int], pause: Callable[[], None]) -> JobSnapshot:
        spec, options = view.spec, view.spec.options
        fresh: dict[ExecutorKey, Measured] = {}
        known: dict[ExecutorKey, Measured] = {}
        for received in view.reports:
            is_fresh = self._is_fresh(view, received)
            for measured in zip(received.report.executors, received.report.details, strict=True):
                key = measured[0].operator, measured[0].executor
                if key in known and measured[0].node != view.homes[key[0]][key[1]]:
                    # The last measures at the home from which it has moved.
                    continue
                known[key] = measured
                if is_fresh:
                    fresh[key] = measured
            pause()
        place_of = {node: places[address] for node, address in spec.members}
        entries = _entries(spec)
        executors = []
        for key in sorted(view.cores):
            executors.append(_executor(view, key, place_of, key[0] in entries, fresh.get(key), known.get(key)))
            pause()
        last = _last(spec)
        sources = [part for one in view.reports if self._is_fresh(view, one) for part in one.report.sources]
        # No operator's watermark is ahead of those of the sources.
        times = [part.event_time for one in view.reports for part in one.report.event_times]
        latency, p99 = _latency([fresh[key] for key in fresh if key[0] in last], pause)
        return JobSnapshot(
            name=spec.job,
            generation=spec.generation,
            executors=tuple(executors),
            latency_target=options.latency_target,
            paradigm=options.paradigm,
            planner=options.planner,
            dry_run=options.dry_run,
            latency=latency,
            latency_p99=p99,
            source_rate=sum(part.rate for part in sources),
            source_lag=max((part.lag for part in sources), default=0.0),
            event_time=max((time for time in times if time is not None), default=None),
            placement=options.placement,
            sources=_source_homes(spec, place_of),
            strategies={operator: options.strategy(operator) for operator in view.groups},
            group_moves=view.group_moves,
        )


def _executor(
    view: JobView,
    key: ExecutorKey,
    place_of: Mapping[int, int],
    entry: bool,
    fresh: Measured | None,
    known: Measured | None,
) -> ExecutorSnapshot:
    """Return the snapshot of an executor; one without a fresh report is pinned, and its stale rates are left out."""
    operator, index = key
    measure, detail = fresh or known or UNMEASURED
    table = view.groups.get(operator)
    return ExecutorSnapshot(
        executor=_identity(operator, index),
        home=place_of[view.homes[operator][index]],
        cores={place_of[node]: count for node, count in sorted(view.cores[key].items())},
        arrival_rate=measure.arrival_rate,
        service_rate=measure.service_rate if fresh else None,
        throughput=measure.throughput,
        customer_rows=measure.customer_rows,
        queue=measure.queue,
        state_bytes=measure.state_bytes,
        bytes_in=measure.bytes_in,
        bytes_out=measure.bytes_out,
        sojourn=measure.sojourn if fresh else None,
        hop=measure.hop if fresh else None,
        enough_cores=measure.enough_cores if fresh else None,
        entry=entry,
        pinned=key in view.pinned or (fresh is None and known is not None),
        moves=measure.moves,
        state_on_disk=measure.state_on_disk,
        windows=measure.windows,
        open_windows=measure.open_windows,
        computes=measure.computes,
        event_time=measure.event_time,
        traffic=Inputs.of(detail.traffic) if fresh else (),
        shard_load=_numbers(detail.shard_load) if fresh else None,
        shard_bytes=_numbers(detail.shard_bytes) if known else None,
        flows=tuple(_flow(*flow) for flow in detail.flows) if fresh else (),
        groups=None if table is None else np.flatnonzero(table.owners == index),
    )


@lru_cache(maxsize=16_384)
def _identity(operator: str, index: int) -> ExecutorId:
    """Return the same object for all snapshots, which is less for garbage collection to visit."""
    return ExecutorId(operator, index)


def _source_homes(spec: JobSpec, place_of: Mapping[int, int]) -> tuple[SourceHome, ...]:
    """Return the nodes of a job's sources."""
    sources = [summary.name for summary in spec.summaries if summary.kind == "source"]
    return tuple(
        SourceHome(name, index, place_of[node]) for name in sources for index, node in enumerate(spec.homes[name])
    )


def _is_idle(view: JobView) -> bool:
    """Return whether each node of a job has repeated its last report."""
    return len(view.reports) == len(view.spec.members) and all(one.idle for one in view.reports)


def _numbers(data: bytes) -> NDArray[np.float64]:
    return np.frombuffer(data, dtype="<f4").astype(np.float64)


def _flow(operator: str, source: bytes, target: bytes, rate: bytes) -> GroupFlow:
    source_of, target_of = (np.frombuffer(data, dtype="<i4").astype(np.int64) for data in (source, target))
    return GroupFlow(operator, source_of, target_of, _numbers(rate))


def _latency(last: Iterable[Measured], pause: Callable[[], None]) -> tuple[float | None, float | None]:
    """Return the mean and the 99th percentile of the seconds from the source to the end of the last operators."""
    total = rows = 0.0
    merged = LatencyHistogram()
    for _, detail in last:
        if detail.latency_mean is not None:
            total += detail.latency_mean * detail.latency_rows
            rows += detail.latency_rows
        merged.merge_bytes(detail.latency_now)
        pause()
    return (total / rows if rows > 0 else None), merged.quantile(0.99)


def _entries(spec: JobSpec) -> frozenset[str]:
    """Return the stateful operators that sources feed."""
    sources = {summary.name for summary in spec.summaries if summary.kind == "source"}
    return frozenset(s.name for s in spec.summaries if s.kind == "compute" and sources & set(s.inputs))


def _last(spec: JobSpec) -> frozenset[str]:
    """Return the stateful operators with no other stateful operator downstream."""
    computes = [summary for summary in spec.summaries if summary.kind == "compute"]
    inputs = {name for summary in computes for name in summary.inputs}
    return frozenset(summary.name for summary in computes if summary.name not in inputs)


class SnapshotBuilder:
    """Gathers the views from which snapshots are built.

    Parameters
    ----------
    membership : Membership
        The workers, the jobs, and which workers are nodes of which jobs.
    stale_after : float
        Seconds after which a report is stale.

    Notes
    -----
    A worker keeps its place in every snapshot as long as it is registered, because the control loop's history refers to
    nodes by their place. The place of a worker that has left goes to the next one that joins.
    """

    def __init__(self, membership: Membership, stale_after: float):
        self.membership = membership
        self.stale_after = stale_after
        self._places: list[str] = []
        # The nodes of the last view: most have not changed.
        self._latest: dict[str, NodeSnapshot] = {}

    def view(self, now: float) -> ClusterView:
        """Gather the data for a snapshot; called on the event loop."""
        jobs = tuple(map(_view, self.membership.jobs.running))
        return ClusterView(now, self._nodes(), jobs, self.stale_after)

    def _nodes(self) -> tuple[NodeSnapshot, ...]:
        workers = self.membership.workers.scheduler.workers
        self._places = [address if address in workers else VACANT for address in self._places]
        for address in sorted(workers.keys() - set(self._places)):
            place = self._places.index(VACANT) if VACANT in self._places else len(self._places)
            self._places[place : place + 1] = [address]
        while self._places and self._places[-1] == VACANT:
            self._places.pop()
        # A worker to which a running job has not connected yet cannot get cores.
        known = self.membership.known_to_all(workers)
        held = {} if len(known) == len(workers) else self.membership.jobs.held()
        found = tuple(
            self._node(address, workers[address], None if address in known else held.get(address, 0))
            if address != VACANT
            else NodeSnapshot(VACANT, VACANT, 0, retiring=True)
            for address in self._places
        )
        self._latest = {node.address: node for node in found}
        return found

    def _node(self, address: str, state: WorkerState, held: int | None) -> NodeSnapshot:
        """Return a worker; if a running job has not connected to it yet, only with the cores that are held there."""
        cores = int(state.nthreads) if held is None else min(int(state.nthreads), held)
        leaving = self.membership.workers.leaving(address)
        memory, before = int(state.memory_limit or 0), self._latest.get(address)
        if before is not None and (before.cores, before.retiring, before.memory) == (cores, leaving, memory):
            return before
        return NodeSnapshot(address, state.host, cores, leaving, memory)


def _view(record: JobRecord) -> JobView:
    busy = {key for key, lock in record.changing.items() if lock.locked()}
    pinned = set(record.cores) if record.starting or record.finishing else record.pinned | busy
    cores = dict(record.cores)
    homes = {operator: table.homes for operator, table in record.homes.tables.items()}
    reports = tuple(record.reports.values())
    groups = record.groups
    return JobView(record.spec, homes, cores, frozenset(pinned), reports, dict(groups.tables), tuple(groups.ended))

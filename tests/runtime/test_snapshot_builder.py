"""Snapshots of workers and jobs: built from fresh reports, without stale measures, and kept within a limit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dask_elastic.runtime.protocol.job_description import ControlView
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.job_status import JobEvent, Status
from dask_elastic.runtime.protocol.reports import EdgeRate, InstanceRows, InstanceTime, Report
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.job_record import JobRecord, ReceivedReport
from dask_elastic.runtime.scheduler.snapshot_log import EXECUTOR_BYTES, SnapshotLog
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot, SourceHome, Traffic

NOW = 1_000.0


def submitted(fake, threads, **options):
    """Return a coordinator, its scheduler, and the record of a job of one operator on fake workers."""
    scheduler = fake.Scheduler(threads)
    coordinator = Coordinator(scheduler)

    async def run():
        await coordinator.submit(fake.submission(**options))
        coordinator.controller.stop()

    asyncio.run(run())
    return coordinator, scheduler, coordinator.jobs["job"]


def reported(fake, record, node, *measures, at=NOW):
    record.reports[node] = ReceivedReport(at, fake.report(list(measures)))


def snapshot(coordinator, now=NOW):
    return coordinator.controller.snapshot_builder.view(now).snapshot()


def test_snapshot_of_executor_has_measures_of_its_home(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2, "h1:2": 2}, executors=2, latency_target=0.05)
    reported(fake, record, 0, fake.measure("op0", 0, node=0, service_rate=700.0, sojourn=0.004))
    reported(fake, record, 1, fake.measure("op0", 1, node=1, arrival_rate=5.0))
    taken = snapshot(coordinator)
    assert [(n.address, n.host, n.cores, n.retiring) for n in taken.nodes] == [
        ("h1:1", "h1", 2, False),
        ("h1:2", "h1", 2, False),
    ]
    [job] = taken.jobs
    assert (job.name, job.generation, job.latency_target) == ("job", record.spec.generation, 0.05)
    first, second = job.executors
    assert first.executor == ExecutorId("op0", 0)
    assert (first.home, dict(first.cores)) == (0, {0: 2})
    assert (first.arrival_rate, first.service_rate, first.throughput) == (1_000.0, 700.0, 1_000.0)
    assert (first.customer_rows, first.queue, first.state_bytes, first.sojourn) == (10.0, 3, 400, 0.004)
    assert (first.bytes_in, first.bytes_out, first.moves) == (8_000.0, 4_000.0, 2)
    assert first.shard_load.tolist() == [0.125] * 4
    assert first.shard_bytes.tolist() == [100.0] * 4
    assert (second.home, second.arrival_rate) == (1, 5.0)
    assert first.entry
    assert not first.pinned


def test_snapshot_has_traffic_of_executors_nodes_of_sources_and_memory_of_workers(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2, "h1:2": 2}, executors=2, placement="flux")
    traffic = ((ExecutorId("rows", 0), 9.0), (ExecutorId("rows", 1), 4.0))
    reported(fake, record, 0, fake.measure("op0", 0, node=0, traffic=traffic))
    taken = snapshot(coordinator)
    [job] = taken.jobs
    assert job.executors[0].traffic == (Traffic("rows", 0, 9.0), Traffic("rows", 1, 4.0))
    assert job.executors[1].traffic == ()
    assert (job.placement, job.sources) == ("flux", (SourceHome("rows", 0, 0),))
    assert [node.memory for node in taken.nodes] == [2**30, 2**30]


def test_snapshot_has_traffic_of_key_groups(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2})
    flow = GroupFlow("op1", np.array([1, 1]), np.array([3, OTHERS]), np.array([900.0, 100.0]))
    reported(fake, record, 0, fake.measure("op0", 0, flows=(flow,)))
    [found] = snapshot(coordinator).jobs[0].executors[0].flows
    assert (found.operator, found.source.tolist(), found.target.tolist()) == ("op1", [1, 1], [3, OTHERS])
    assert found.rate.tolist() == [900.0, 100.0]


def test_traffic_of_stale_report_is_left_out(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2})
    reported(fake, record, 0, fake.measure("op0", 0, traffic=((ExecutorId("rows", 0), 9.0),)), at=NOW - 60)
    assert snapshot(coordinator).jobs[0].executors[0].traffic == ()


def test_snapshot_has_rate_of_all_sources_and_lag_of_the_latest(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2, "h1:2": 2})
    for node, rate, lag in [(0, 30.0, 0.5), (1, 12.0, 2.5)]:
        sources = (InstanceRows("rows", node, 9, rate, lag=lag),)
        record.reports[node] = ReceivedReport(NOW, fake.empty_report(False, sources=sources))
    [job] = snapshot(coordinator).jobs
    assert (job.source_rate, job.source_lag) == (42.0, 2.5)


def test_snapshot_has_watermarks_of_executors_and_the_newest_of_all(fake):
    coordinator, _, record = submitted(fake, {"h1:1": 2, "h1:2": 2})
    times = [InstanceTime("rows", 0, 70, 0), InstanceTime("op0", 0, 50, 0), InstanceTime("out", 0, None, 0)]
    report = fake.report([fake.measure("op0", 0, event_time=50)])
    record.reports[0] = ReceivedReport(NOW, replace(report, event_times=tuple(times)))
    [job] = snapshot(coordinator).jobs
    assert (job.event_time, job.executors[0].event_time) == (70, 50)


def test_report_repeated_by_idle_node_is_fresh_between_two_repetitions(fake):
    coordinator, _, record = submitted(fake, {"a": 2}, report_interval=2.0)
    reported(fake, record, 0, fake.measure("op0", 0), at=NOW - 5.9)
    [executor] = snapshot(coordinator).jobs[0].executors
    assert executor.service_rate is not None
    coordinator, _, record = submitted(fake, {"a": 2}, report_interval=0.01)
    coordinator.controller.snapshot_builder.stale_after = 0.03
    record.receive(0, fake.report([fake.measure("op0", 0)]))
    at, report = record.reports[0][:2]
    for idle, fresh in ((False, False), (True, True)):
        record.reports[0] = ReceivedReport(at, report, idle)
        [executor] = snapshot(coordinator, now=at + 1.5).jobs[0].executors
        assert (executor.service_rate is not None) == fresh


def test_report_that_is_repeated_while_a_part_is_measured_late_is_not_fresh(fake):
    """State that moves to disk takes long; the rates of before do not hold for all that time."""
    coordinator, _, record = submitted(fake, {"a": 2})
    report, began = fake.report([fake.measure("op0", 0)]), time.time()
    record.reports[0] = ReceivedReport(began - 60.0, report)
    for _ in range(2):
        call = Report(*record.generation_id, 0, None, late=True)
        asyncio.run(coordinator.health.report(call))
        received = record.reports[0]
        # The worker is there, though.
        assert received.at >= began
        assert not received.idle
        [executor] = snapshot(coordinator, now=received.at).jobs[0].executors
        assert executor.service_rate is None
    asyncio.run(coordinator.health.report(replace(call, report=report, late=False)))
    [executor] = snapshot(coordinator, now=record.reports[0].at).jobs[0].executors
    assert executor.service_rate is not None


def changes(fake, scheduler, record):
    """What an idle cluster may go through, each as a function that brings it about."""
    report = record.reports[0].report

    def receive(report, idle):
        record.reports[0] = ReceivedReport(NOW, report, idle)

    return {
        "a repeated report": (lambda: receive(report, True), True),
        "a report": (lambda: receive(report, False), False),
        "other measures": (lambda: receive(fake.report([fake.measure("op0", 0, rows=10)]), True), False),
        "no report for long": (lambda: record.reports.update({0: ReceivedReport(NOW - 9.0, report, True)}), False),
        "other cores": (lambda: record.cores.update({("op0", 0): {0: 1}}), False),
        "pinned cores": (lambda: record.pinned.add(("op0", 0)), False),
        "a worker that has joined": (lambda: scheduler.add("b"), False),
        "a worker with other threads": (lambda: setattr(scheduler.workers["a"], "nthreads", 3), False),
        "no reports": (record.reports.clear, False),
    }


@pytest.mark.parametrize("change", range(9))
def test_view_holds_only_while_idle_nodes_repeat_their_reports(fake, change):
    coordinator, scheduler, record = submitted(fake, {"a": 2})
    record.reports[0] = ReceivedReport(NOW - 1.0, fake.report([fake.measure("op0", 0)]), True)
    before = coordinator.controller.snapshot_builder.view(NOW - 1.0)
    name, (bring_about, holds) = list(changes(fake, scheduler, record).items())[change]
    bring_about()
    assert coordinator.controller.snapshot_builder.view(NOW).holds(before) == holds, name


def test_snapshot_has_executor_without_report_but_no_measures(fake):
    coordinator, _, _ = submitted(fake, {"a": 2})
    [executor] = snapshot(coordinator).jobs[0].executors
    assert executor.service_rate is None
    assert executor.sojourn is None
    assert executor.arrival_rate == 0
    assert dict(executor.cores) == {0: 2}


@pytest.mark.parametrize(("age", "fresh"), [(0.0, True), (2.9, True), (3.1, False), (60.0, False)])
def test_report_older_than_a_few_periods_is_stale(fake, age, fresh):
    coordinator, _, record = submitted(fake, {"a": 2})
    reported(fake, record, 0, fake.measure("op0", 0), at=NOW - age)
    [job] = snapshot(coordinator).jobs
    [executor] = job.executors
    assert (executor.service_rate is not None) == (executor.sojourn is not None) == fresh
    assert (job.latency is not None) == (job.latency_p99 is not None) == (executor.shard_load is not None) == fresh
    assert executor.state_bytes == 400
    assert executor.pinned == (not fresh)


def test_report_with_long_interval_stays_fresh_longer(fake):
    coordinator, _, record = submitted(fake, {"a": 2}, report_interval=5.0)
    reported(fake, record, 0, fake.measure("op0", 0), at=NOW - 14)
    assert snapshot(coordinator).jobs[0].latency is not None


def test_job_latency_is_tuple_weighted_mean_of_last_operators(fake):
    coordinator, _, record = submitted(fake, {"a": 4}, operators=2)
    last = fake.measure("op1", 0, latency=0.030, latency_rows=300.0)
    reported(fake, record, 0, fake.measure("op0", 0, latency=0.5), last, fake.measure("op1", 1, latency=0.070))
    [job] = snapshot(coordinator).jobs
    assert job.latency == pytest.approx((300 * 0.030 + 100 * 0.070) / 400)
    assert job.latency_p99 == pytest.approx(0.070, rel=0.02)
    assert {e.executor.component: e.entry for e in job.executors} == {"op0": True, "op1": False}


def test_user_set_starting_and_changing_executors_are_pinned(fake):
    coordinator, _, record = submitted(fake, {"a": 4}, executors=2)
    assert [e.pinned for e in snapshot(coordinator).jobs[0].executors] == [False, False]
    record.pinned.add(("op0", 1))
    assert [e.pinned for e in snapshot(coordinator).jobs[0].executors] == [False, True]

    async def while_it_changes():
        async with record.changing["op0", 0]:
            return snapshot(coordinator)

    assert [e.pinned for e in asyncio.run(while_it_changes()).jobs[0].executors] == [True, True]
    record.pinned.clear()
    record.status = Status.STARTING
    assert [e.pinned for e in snapshot(coordinator).jobs[0].executors] == [True, True]


def test_cores_given_at_submit_are_pinned(fake):
    coordinator, _, _ = submitted(fake, {"a": 4}, operators=2, cores={"op1": 1})
    pinned = {e.executor.component: e.pinned for e in snapshot(coordinator).jobs[0].executors}
    assert pinned == {"op0": False, "op1": True}


def test_snapshot_omits_ended_job(fake):
    coordinator, _, record = submitted(fake, {"a": 2})
    record.change(JobEvent.STOP_REQUESTED)
    assert snapshot(coordinator).jobs == ()


def test_workers_keep_their_places_and_next_worker_fills_vacant_place(fake):
    coordinator, scheduler, record = submitted(fake, {"b": 2, "c": 2})
    record.change(JobEvent.STOP_REQUESTED)

    def addresses():
        return [node.address for node in snapshot(coordinator).nodes]

    assert addresses() == ["b", "c"]
    scheduler.add("a")
    assert addresses() == ["b", "c", "a"]
    del scheduler.workers["b"]
    assert addresses() == ["", "c", "a"]
    assert snapshot(coordinator).nodes[0].cores == 0
    scheduler.add("d")
    assert addresses() == ["d", "c", "a"]
    del scheduler.workers["a"]
    assert addresses() == ["d", "c"]


def test_worker_offers_free_cores_once_it_has_joined_every_job(fake):
    coordinator, scheduler, record = submitted(fake, {"a": 2})
    scheduler.add("new", 4)
    assert [node.cores for node in snapshot(coordinator).nodes] == [2, 0]
    record.spec = record.spec.with_guest("new")
    assert [node.cores for node in snapshot(coordinator).nodes] == [2, 4]
    record.cores["op0", 0] = {0: 2, 1: 1}
    scheduler.workers["new"].nthreads = 1
    assert [node.cores for node in snapshot(coordinator).nodes] == [2, 1]
    assert dict(snapshot(coordinator).jobs[0].executors[0].cores) == {0: 2, 1: 1}


@pytest.mark.parametrize("how", ["ours", "dask"])
def test_leaving_worker_is_marked_as_retiring(fake, how):
    coordinator, scheduler, _ = submitted(fake, {"a": 2, "b": 2}, executors=1)
    if how == "ours":
        coordinator.workers.retiring.add("b")
    else:
        scheduler.workers["b"].status.name = "closing_gracefully"
    assert [node.retiring for node in snapshot(coordinator).nodes] == [False, True]


def test_snapshot_view_is_independent_of_later_job_changes(fake):
    coordinator, _, record = submitted(fake, {"a": 4}, executors=2)
    reported(fake, record, 0, fake.measure("op0", 0), fake.measure("op0", 1))
    view = coordinator.controller.snapshot_builder.view(NOW)
    record.cores["op0", 0] = {0: 9}
    record.pinned.add(("op0", 0))
    reported(fake, record, 0, fake.measure("op0", 0, arrival_rate=1.0), fake.measure("op0", 1))
    [job] = view.snapshot().jobs
    assert dict(job.executors[0].cores) == {0: 2}
    assert not job.executors[0].pinned
    assert job.executors[0].arrival_rate == 1_000.0


def test_shard_loads_and_sizes_are_decoded(fake):
    coordinator, _, record = submitted(fake, {"a": 2})
    load = np.array([0.5, 0.0, 0.25, 1e-3])
    reported(fake, record, 0, fake.measure("op0", 0, shard_load=load, shard_bytes=np.array([2**31, 0, 7, 1])))
    [executor] = snapshot(coordinator).jobs[0].executors
    assert executor.shard_load == pytest.approx(load)
    assert executor.shard_bytes.tolist() == [2**31, 0, 7, 1]


# the log


def moment(now, *jobs):
    shards = np.zeros(1_000)
    executor = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 1}, 0.0, None, shard_load=shards)
    made = tuple(JobSnapshot(name, generation, (executor,)) for name, generation in jobs)
    return Snapshot(float(now), (NodeSnapshot("a", "a", 1),), made)


def test_snapshot_log_stays_within_limit_and_keeps_newest_snapshot():
    log = SnapshotLog(limit=3 * (8_000 + EXECUTOR_BYTES))
    for now in range(10):
        log.add(moment(now, ("job", 1)))
    assert [s.now for s in log.snapshots] == [7.0, 8.0, 9.0]
    small = SnapshotLog(limit=1)
    for now in range(3):
        small.add(moment(now, ("job", 1)))
    assert [s.now for s in small.snapshots] == [2.0]


def test_snapshot_log_returns_snapshots_of_one_generation():
    log = SnapshotLog()
    for now in range(6):
        log.add(moment(now, ("job", 1 + now // 3), ("other", 9)))
    assert [s.now for s in log.of("job", 1)] == [0.0, 1.0, 2.0]
    assert [s.now for s in log.of("job", 2, last=2)] == [4.0, 5.0]
    assert [s.now for s in log.of("job", 2, last=9)] == [3.0, 4.0, 5.0]
    assert log.of("job", 2, last=0) == []
    assert log.of("job", 3) == []


# operators and edges, from reports to the description of a job


@pytest.fixture
def two_nodes(fake):
    """A job with a source, two stateful operators and a sink on two nodes."""
    submission = fake.submission(operators=2)
    edges = {"rows": (("rows", "op0"),), "op0": (("op0", "op1"),), "op1": (("op1", "out"),), "out": ()}
    known = tuple(replace(one, kinds=(one.kind,), edges=edges[one.name]) for one in submission.summaries)
    homes = {"rows": (0,), "op0": (0,), "op1": (1,)}
    spec = JobSpec(
        "job", 1, ("a", "b"), 0, known, homes, {"op0": ({0: 1},), "op1": ({1: 1},)}, fake.submission().options
    )
    return JobRecord(spec, oversubscribed=False)


def test_description_sums_rates_of_edges_over_nodes(fake, two_nodes):
    two_nodes.receive(0, fake.report([], edges={("rows", "op0"): 30.0, ("op0", "op1"): 10.0}))
    two_nodes.receive(1, fake.report([], edges={("op0", "op1"): 5.0}))
    described = two_nodes.description((), ControlView())
    assert described.edges == (
        EdgeRate("rows", "op0", 30.0), EdgeRate("op0", "op1", 15.0), EdgeRate("op1", "out", 0.0),
    )  # fmt: skip
    assert [one.kinds for one in described.components] == [("source",), ("compute",), ("compute",), ("sink",)]


def test_report_contains_busy_time_and_backpressure_of_executors(fake):
    [executor] = fake.report([fake.measure("op0", 0, shards=4)]).executors
    assert (executor.busy, executor.backpressured) == (0.5, 0.25)


def test_report_contains_loads_of_sources_and_sinks(fake):
    exchange = SimpleNamespace(backpressured=lambda identity: 0.75)
    shared = {"rows": 12, "rows_per_second": lambda: 6.0, "busy": lambda: 0.125}
    source = SimpleNamespace(
        identity=("rows", 0), exchange=exchange, lag=lambda: 1.5, mailbox=None, clock=None, **shared
    )
    sink = SimpleNamespace(identity=("out", 1), inputs=SimpleNamespace(timed=False), **shared)
    report = fake.report([], sources={"rows": source}, sinks={"out": sink})
    assert report.sources == (InstanceRows("rows", 0, 12, 6.0, busy=0.125, backpressured=0.75, lag=1.5),)
    assert report.sinks == (InstanceRows("out", 1, 12, 6.0, busy=0.125),)

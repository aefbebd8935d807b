"""Prometheus metrics, served on ``/metrics`` together with Dask's own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import dask.config
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.dashboard.checkpoints import metrics as checkpoint_metrics
from dask_elastic.dashboard.checkpoints.metrics import add_checkpoints
from dask_elastic.dashboard.cluster_view import STATUSES

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.dashboard.cluster_view import ClusterView, JobCard
    from dask_elastic.vocab.snapshot import ExecutorSnapshot

logger = logging.getLogger("dask_elastic.scheduler")

JOB = ("job",)
OPERATOR = ("job", "operator")
EXECUTOR = (*OPERATOR, "executor")

GAUGES = {
    "jobs": ("Number of jobs on the cluster", ("status",)),
    "cores": ("Cores of an executor on a node", (*EXECUTOR, "node")),
    "arrival_rate": ("Tuples per second that arrive at an executor", EXECUTOR),
    "service_rate": ("Tuples per second that one busy core of an executor processes", EXECUTOR),
    "throughput": ("Tuples per second that an executor processes", EXECUTOR),
    "source_rate": ("Rows per second that the sources of a job read", JOB),
    "queue_tuples": ("Tuples that wait in the queues of an executor", EXECUTOR),
    "state_bytes": ("Size of an executor's state", EXECUTOR),
    "state_on_disk_bytes": ("The part of an executor's state that is in files", EXECUTOR),
    "open_windows": ("Partial results of open windows, one per key and instance or slice", EXECUTOR),
    "watermark_seconds": ("Watermark of an executor, seconds since the Unix epoch", EXECUTOR),
    "latency_seconds": ("Measured end-to-end latency of a job", (*JOB, "statistic")),
    "latency_predicted_seconds": ("Mean latency that the model predicts for a job's cores", JOB),
    "latency_target_seconds": ("Target of a job's mean latency", JOB),
    "recovery_seconds": (
        "Time from the loss of remote tasks to the first row processed after it",
        (*EXECUTOR, "statistic"),
    ),
    "source_lag_seconds": ("Seconds by which the rows of a source leave late", OPERATOR),
    "busy_ratio": ("Share of time in which an operator processes rows", OPERATOR),
    "backpressured_ratio": ("Share of time in which the outputs of an operator wait for credit", OPERATOR),
    "edge_rate": ("Rows per second that an operator passes to another one", (*OPERATOR, "consumer")),
    "group_traffic_rate": (
        "Bytes per second that key groups of an operator send to those of another one, by whether on the same worker",
        (*OPERATOR, "consumer", "same_worker"),
    ),
    "starved_cores": ("Cores that a job lacks to reach its target", JOB),
    "gil_bound": (
        "Whether an operator is GIL-bound: more cores on one node do not make it faster",
        OPERATOR,
    ),
    **checkpoint_metrics.GAUGES,
}
COUNTERS = {
    "moves": ("Shard moves of an executor", EXECUTOR),
    "recoveries": ("Lost workers whose remote tasks an executor has replaced", EXECUTOR),
    "window_rows": ("Pairs of a row and a window, by what became of the row", (*EXECUTOR, "outcome")),
    "dead_letters": ("Rows on which the code of an operator raised", OPERATOR),
    "decisions": ("Decisions about a job, by whether they were carried out", (*JOB, "applied")),
    **checkpoint_metrics.COUNTERS,
}


class Families:
    """The metrics of one scrape.

    Parameters
    ----------
    schedulers : bool
        Whether samples have a label with their scheduler, because this process has several.
    """

    def __init__(self, schedulers: bool = False):
        first = ("scheduler",) if schedulers else ()
        prefix = "_".join(filter(None, (dask.config.get("distributed.dashboard.prometheus.namespace"), "elastic")))
        self._first: tuple[str, ...] = ()
        self._named = schedulers
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: kind(f"{prefix}_{name}", text, labels=[*first, *labels])
            for kind, described in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS))
            for name, (text, labels) in described.items()
        }

    def of(self, scheduler: str) -> Families:
        """Set the scheduler of the samples added next."""
        self._first = (scheduler,) if self._named else ()
        return self

    def add(self, name: str, labels: Iterable[str], value: float | None) -> None:
        """Add a sample; do nothing if the value is None."""
        if value is not None:
            self._families[name].add_metric([*self._first, *labels], value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class DecisionCounts:
    """Counts decisions from a log that drops old ones; each scrape counts those added since the last one."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, dict[bool, int]]] = {}

    def of(self, view: ClusterView, job: JobHistory) -> dict[bool, int]:
        """Return the number of decisions about a job, by whether they were carried out."""
        latest = job.latest()
        generation, last, counts = self._counts.get(latest.name, (latest.generation, -1, {}))
        if generation != latest.generation:
            last, counts = -1, {}
        counts = {True: 0, False: 0, **counts}
        for decision in view.decisions(job):
            if decision.number > last:
                last = decision.number
                counts[decision.applied] += 1
        self._counts[latest.name] = (latest.generation, last, counts)
        return counts

    def keep(self, names: Collection[str]) -> None:
        """Drop the counts of all jobs that are not in `names`."""
        self._counts = {name: counted for name, counted in self._counts.items() if name in names}


class ElasticCollector:
    """Collects the metrics of all schedulers of this process when Prometheus scrapes them."""

    def __init__(self) -> None:
        self._view: dict[str, tuple[ClusterView, DecisionCounts]] = {}

    def add(self, scheduler: str, view: ClusterView) -> None:
        """Collect the metrics of a scheduler from now on."""
        if not self._view:
            REGISTRY.register(self)
        self._view[scheduler] = view, DecisionCounts()

    def remove(self, scheduler: str) -> None:
        """Stop collecting the metrics of a scheduler."""
        if self._view.pop(scheduler, None) is not None and not self._view:
            REGISTRY.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return Families()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their samples."""
        families = Families(schedulers=len(self._view) > 1)
        for scheduler, (view, decisions) in [*self._view.items()]:
            try:
                _gather(families.of(scheduler), view, decisions)
            except Exception:  # the same scrape returns Dask's own metrics, which must not fail
                logger.exception("The Prometheus metrics of elastic jobs at scheduler %s are incomplete", scheduler)
        return families


COLLECTOR = ElasticCollector()
"""The collector of this process."""


def _gather(families: Families, view: ClusterView, decisions: DecisionCounts) -> None:
    cards = view.cards()
    decisions.keep(cards)
    for status in STATUSES:
        families.add("jobs", [status], sum(card.status == status for card in cards.values()))
    for name, card in cards.items():
        job = view.job(name)
        if job is None:
            continue
        for executor in job.latest().executors:
            families.add("moves", _labels(name, executor), executor.moves)
            for outcome, count in (executor.windows._asdict() if executor.windows else {}).items():
                families.add("window_rows", [*_labels(name, executor), outcome], count)
        _gather_recoveries(families, card)
        _gather_flow(families, card)
        if (taken := card.checkpoints()) is not None:
            add_checkpoints(families.add, name, taken.status, card.live)
        for applied, count in decisions.of(view, job).items():
            families.add("decisions", [name, str(applied).lower()], count)
        # A job that has ended keeps its counters, but has no gauges.
        if card.live:
            _gather_job(families, name, job)
            _gather_executors(families, card, job)


def _gather_job(families: Families, name: str, job: JobHistory) -> None:
    latest = job.latest()
    families.add("latency_seconds", [name, "mean"], latest.latency)
    families.add("latency_seconds", [name, "p99"], latest.latency_p99)
    families.add("latency_target_seconds", [name], latest.latency_target)
    predicted = job.series("predicted")[-1]
    families.add("latency_predicted_seconds", [name], None if predicted != predicted else predicted)
    families.add("source_rate", [name], latest.source_rate)
    families.add("starved_cores", [name], job.starved)
    for one in GroupMap.of(latest, job.flows).traffic:
        inside = min(float(one.within.sum()), one.total)
        families.add("group_traffic_rate", [name, one.sender, one.receiver, "true"], inside)
        families.add("group_traffic_rate", [name, one.sender, one.receiver, "false"], one.total - inside)
    for operator in dict.fromkeys(executor.executor.component for executor in latest.executors):
        families.add("gil_bound", [name, operator], float(operator in job.bound))


def _gather_flow(families: Families, card: JobCard) -> None:
    flow = card.flow()
    for one in flow.operators:
        labels = [card.name, one.name]
        families.add("dead_letters", labels, one.dead_letters)
        if card.live and not one.fused:
            families.add("busy_ratio", labels, one.busy)
            families.add("backpressured_ratio", labels, one.backpressured)
            families.add("source_lag_seconds", labels, one.lag)
    for (producer, consumer), rate in flow.rates.items() if card.live else ():
        families.add("edge_rate", [card.name, producer, consumer], rate)


def _gather_recoveries(families: Families, card: JobCard) -> None:
    for (operator, index), (count, p50, p99) in card.recoveries().items():
        labels = [card.name, operator, str(index)]
        families.add("recoveries", labels, count)
        families.add("recovery_seconds", [*labels, "p50"], p50)
        families.add("recovery_seconds", [*labels, "p99"], p99)


def _gather_executors(families: Families, card: JobCard, job: JobHistory) -> None:
    for (operator, index), by_node in card.cores().items():
        for node, count in by_node.items():
            families.add("cores", [card.name, operator, str(index), node], count)
    for executor in job.latest().executors:
        labels = _labels(card.name, executor)
        families.add("arrival_rate", labels, executor.arrival_rate)
        families.add("service_rate", labels, executor.service_rate)
        families.add("throughput", labels, executor.throughput)
        families.add("queue_tuples", labels, executor.queue)
        families.add("state_bytes", labels, executor.state_bytes)
        families.add("state_on_disk_bytes", labels, executor.state_on_disk)
        families.add("open_windows", labels, executor.open_windows)
        families.add("watermark_seconds", labels, None if executor.event_time is None else executor.event_time / 1e6)


def _labels(job: str, executor: ExecutorSnapshot) -> list[str]:
    return [job, executor.executor.component, str(executor.executor.index)]

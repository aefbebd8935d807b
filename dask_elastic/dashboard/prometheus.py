"""Metrics for Prometheus, beside Dask's own on ``/metrics``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import dask.config
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dask_elastic.dashboard.watched import STATUSES

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.dashboard.watched import JobCard, Watched
    from dask_elastic.vocab.snapshot import ExecutorSnapshot

logger = logging.getLogger("dask_elastic.scheduler")

JOB = ("job",)
EXECUTOR = ("job", "operator", "executor")

GAUGES = {
    "jobs": ("Jobs that the cluster knows", ("status",)),
    "cores": ("Cores of an executor on a node", (*EXECUTOR, "node")),
    "arrival_rate": ("Tuples per second that arrive at an executor", EXECUTOR),
    "service_rate": ("Tuples that one core of an executor processes in a busy second", EXECUTOR),
    "throughput": ("Tuples per second that an executor processes", EXECUTOR),
    "queue_tuples": ("Tuples that wait at an executor", EXECUTOR),
    "state_bytes": ("Size of an executor's state", EXECUTOR),
    "latency_seconds": ("Measured time from a job's source to the end of processing", (*JOB, "statistic")),
    "latency_predicted_seconds": ("Mean latency that the model expects of a job's cores", JOB),
    "latency_target_seconds": ("Mean latency that is wanted of a job", JOB),
    "recovery_seconds": (
        "Time from the loss of remote tasks to the first row processed again",
        (*EXECUTOR, "statistic"),
    ),
    "starved_cores": ("Cores that a job lacks to reach its target", JOB),
    "gil_bound": (
        "Whether an operator holds the GIL, so that more cores on a node do not help it",
        ("job", "operator"),
    ),
}
COUNTERS = {
    "moves": ("Shards of an executor that have moved", EXECUTOR),
    "recoveries": ("Workers of which an executor lost remote tasks, and went on", EXECUTOR),
    "decisions": ("Decisions about a job, and whether they were carried out", (*JOB, "applied")),
}


class Families:
    """The metrics of one scrape.

    Parameters
    ----------
    schedulers : bool
        Whether samples bear the name of their scheduler, since there are several in this process.
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
        """Let the following samples be of this scheduler."""
        self._first = (scheduler,) if self._named else ()
        return self

    def add(self, name: str, labels: Iterable[str], value: float | None) -> None:
        """Add a sample; what is not known has none."""
        if value is not None:
            self._families[name].add_metric([*self._first, *labels], value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class DecisionCounts:
    """Counts decisions from a log that forgets old ones; it has to be asked before they are forgotten."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, dict[bool, int]]] = {}

    def of(self, watched: Watched, job: JobHistory) -> dict[bool, int]:
        """Return how many there were about a job, by whether they were carried out."""
        latest = job.latest()
        generation, last, counts = self._counts.get(latest.name, (latest.generation, -1, {}))
        if generation != latest.generation:
            last, counts = -1, {}
        counts = {True: 0, False: 0, **counts}
        for decision in watched.decisions(job):
            if decision.number > last:
                last = decision.number
                counts[decision.applied] += 1
        self._counts[latest.name] = (latest.generation, last, counts)
        return counts


class ElasticCollector:
    """Gathers the metrics of all schedulers of this process when Prometheus asks."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[Watched, DecisionCounts]] = {}

    def add(self, scheduler: str, watched: Watched) -> None:
        """Gather the metrics of one more scheduler."""
        if not self._watched:
            REGISTRY.register(self)
        self._watched[scheduler] = watched, DecisionCounts()

    def remove(self, scheduler: str) -> None:
        """Gather them no more."""
        if self._watched.pop(scheduler, None) is not None and not self._watched:
            REGISTRY.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Say what there is to gather, without gathering it."""
        return Families()

    def collect(self) -> Iterable[Metric]:
        """Gather it."""
        families = Families(schedulers=len(self._watched) > 1)
        for scheduler, (watched, decisions) in [*self._watched.items()]:
            try:
                _gather(families.of(scheduler), watched, decisions)
            except Exception:  # Dask's own metrics are asked for in the same breath, and must not suffer
                logger.exception("metrics for Prometheus are not complete")
        return families


COLLECTOR = ElasticCollector()
"""The one of this process."""


def _gather(families: Families, watched: Watched, decisions: DecisionCounts) -> None:
    cards = watched.cards()
    for status in STATUSES:
        families.add("jobs", [status], sum(card.status == status for card in cards.values()))
    for name, card in cards.items():
        job = watched.job(name)
        if job is None:
            continue
        for executor in job.latest().executors:
            families.add("moves", _labels(name, executor), executor.moves)
        _gather_recoveries(families, card)
        for applied, count in decisions.of(watched, job).items():
            families.add("decisions", [name, str(applied).lower()], count)
        # What has ended has a past, which the counters tell, and no present.
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
    families.add("starved_cores", [name], job.starved)
    for operator in dict.fromkeys(executor.executor.component for executor in latest.executors):
        families.add("gil_bound", [name, operator], float(operator in job.bound))


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


def _labels(job: str, executor: ExecutorSnapshot) -> list[str]:
    return [job, executor.executor.component, str(executor.executor.index)]

"""The dashboard's read-only view of a cluster: the history of its jobs, and a card for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dask_elastic.control.job_flow import JobFlow
from dask_elastic.dashboard.time_series import TimeSeriesStore

if TYPE_CHECKING:
    from dask_elastic.control.history import History, JobHistory
    from dask_elastic.dashboard.checkpoints.taken import TakenCheckpoints
    from dask_elastic.vocab.epoch import HandoffProgress
    from dask_elastic.vocab.plan import Decision

STATUSES = ("starting", "running", "draining", "restarting", "finished", "stopped", "failed")
ENDED = frozenset({"finished", "stopped", "failed"})


@dataclass(frozen=True)
class JobCard:
    """The status of a job, and functions that return its details.

    Parameters
    ----------
    name : str
        The job's name.
    status : str
        One of `STATUSES`.
    began : float
        Time at which the job began, in seconds since 1970.
    oversubscribed : bool
        Whether the job's executors share slots.
    error : str or None
        The error that failed the job.
    cores : callable
        Returns, for each executor (operator, number), its cores by node address.
    handoffs : callable
        Returns the progress of the handoff to each source that Spark feeds.
    checkpoints : callable
        Returns the checkpoints of the job; None for a job without them.
    recoveries : callable
        Returns, for each executor, how often it recovered from the loss of remote tasks, and p50 and p99 of the seconds
        from the loss to the first row processed after it; None if there was no loss.
    flow : callable
        Returns the flow of rows through the job.
    """

    name: str
    status: str
    began: float
    oversubscribed: bool = False
    error: str | None = None
    cores: Callable[[], Mapping[tuple[str, int], Mapping[str, int]]] = dict
    handoffs: Callable[[], Sequence[HandoffProgress]] = tuple
    checkpoints: Callable[[], TakenCheckpoints | None] = lambda: None
    recoveries: Callable[[], Mapping[tuple[str, int], tuple[int, float | None, float | None]]] = dict
    flow: Callable[[], JobFlow] = JobFlow

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self.status not in ENDED


@dataclass(frozen=True, eq=False)
class ClusterView:
    """The jobs of a cluster, as the dashboard reads them; each call returns the current values.

    Parameters
    ----------
    history : History
        The control loop's history of measures.
    list_cards : callable
        Returns a card for each job of the cluster.
    list_decisions : callable
        Returns the decisions about a job, newest last, with the latencies observed after them.
    problem : callable
        Returns the error that stops the control loop at the moment, or None.
    time_series : TimeSeriesStore
        The time series that viewers share.
    """

    history: History
    list_cards: Callable[[], Iterable[JobCard]]
    list_decisions: Callable[[str], Iterable[Decision]]
    problem: Callable[[], str | None] = lambda: None
    time_series: TimeSeriesStore = field(default_factory=TimeSeriesStore)

    def cards(self) -> dict[str, JobCard]:
        """Return the jobs by name: running jobs first, each group sorted from newest to oldest."""
        cards = sorted(self.list_cards(), key=lambda card: (card.live, card.began), reverse=True)
        self.time_series.keep([card.name for card in cards])
        return {card.name: card for card in cards}

    def job(self, name: str) -> JobHistory | None:
        """Return the control loop's history of a job; None before the first measure."""
        return self.history.job(name) if name in self.history.jobs() else None

    def decisions(self, job: JobHistory) -> list[Decision]:
        """Return the decisions about a job's current generation, newest last."""
        latest = job.latest()
        return [one for one in self.list_decisions(latest.name) if one.generation == latest.generation]

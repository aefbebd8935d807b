"""What the dashboard reads of a cluster: the history of its jobs, and a card of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dask_elastic.dashboard.tape import Tapes

if TYPE_CHECKING:
    from dask_elastic.control.history import History, JobHistory
    from dask_elastic.vocab.epoch import HandoffProgress
    from dask_elastic.vocab.plan import Decision

STATUSES = ("starting", "running", "draining", "finished", "stopped", "failed")
ENDED = frozenset({"finished", "stopped", "failed"})


@dataclass(frozen=True)
class JobCard:
    """What is known of a job without measuring it.

    Parameters
    ----------
    name : str
        Its name.
    status : str
        One of `STATUSES`.
    began : float
        Seconds since the epoch.
    oversubscribed : bool
        Whether its executors share slots.
    error : str or None
        Why it failed.
    cores : callable
        Returns cores by executor, which is (operator, number), and of each by the address of the node.
    handoffs : callable
        Returns how far the hand-off to each source is that another engine feeds.
    recoveries : callable
        Returns by executor how often it lost remote tasks and went on, and p50 and p99 of the seconds from there to the
        first row processed again, None where there was none.
    """

    name: str
    status: str
    began: float
    oversubscribed: bool = False
    error: str | None = None
    cores: Callable[[], Mapping[tuple[str, int], Mapping[str, int]]] = dict
    handoffs: Callable[[], Sequence[HandoffProgress]] = tuple
    recoveries: Callable[[], Mapping[tuple[str, int], tuple[int, float | None, float | None]]] = dict

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ENDED


@dataclass(frozen=True, eq=False)
class Watched:
    """A cluster as its viewers see it; everything is asked for anew when somebody looks.

    Parameters
    ----------
    history : History
        What the control loop has seen.
    list_cards : callable
        Returns a card for each job that the cluster knows.
    list_decisions : callable
        Returns the decisions about the job of a name, newest last, with what was observed of them.
    problem : callable
        Returns why the control loop does not work at the moment, or None.
    tapes : Tapes
        What viewers share.
    """

    history: History
    list_cards: Callable[[], Iterable[JobCard]]
    list_decisions: Callable[[str], Iterable[Decision]]
    problem: Callable[[], str | None] = lambda: None
    tapes: Tapes = field(default_factory=Tapes)

    def cards(self) -> dict[str, JobCard]:
        """Return the jobs by name: first those that run, of these the newest first."""
        cards = sorted(self.list_cards(), key=lambda card: (card.live, card.began), reverse=True)
        self.tapes.keep([card.name for card in cards])
        return {card.name: card for card in cards}

    def job(self, name: str) -> JobHistory | None:
        """Return what the control loop remembers of a job, or None before it has seen it."""
        return self.history.job(name) if name in self.history.jobs() else None

    def decisions(self, job: JobHistory) -> list[Decision]:
        """Return the decisions about one run of a job, newest last."""
        latest = job.latest()
        return [one for one in self.list_decisions(latest.name) if one.generation == latest.generation]

"""Decisions that are kept with the addresses of their nodes, and published as events of Dask."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_elastic.control.decision_log import DecisionLog
from dask_elastic.runtime.scheduler.control.decision_texts import event_message
from dask_elastic.vocab.plan import Decision

if TYPE_CHECKING:
    from distributed import Scheduler

TOPIC = "dask_elastic"
"""The topic of Dask's events under which decisions are published."""

KEPT_DECISIONS = 1_000

SHARED_LISTS = 4
"""Lists of addresses with which new ones are compared: jobs number nodes in their own order, homes have addresses."""


class PublishedDecisions:
    """Keeps the newest decisions, and publishes each.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Publishes events.

    Attributes
    ----------
    log : DecisionLog
        The newest decisions.
    """

    def __init__(self, scheduler: Scheduler):
        self.log = DecisionLog(KEPT_DECISIONS)
        self._scheduler = scheduler
        self._addresses: deque[tuple[int, list[str]]] = deque(maxlen=KEPT_DECISIONS)
        # A large cluster has thousands of addresses, which seldom change.
        self._shared: deque[list[str]] = deque(maxlen=SHARED_LISTS)

    def keep(self, decisions: Iterable[Decision], addresses: list[str]) -> None:
        """Keep decisions with the addresses of their nodes, both at once: who asks for the one needs the other."""
        decisions = tuple(decisions)
        self.log.add(decisions)
        shared = next((known for known in self._shared if known == addresses), None)
        if shared is None:
            self._shared.append(shared := addresses)
        self._addresses.extend((decision.number, shared) for decision in decisions)

    def publish(self, decision: Decision, addresses: list[str]) -> None:
        """Log a decision as an event of Dask."""
        self._scheduler.log_event(TOPIC, event_message(decision, addresses))

    def with_addresses(self, job: str, generation: int, last: int | None = None) -> list[tuple[Decision, list[str]]]:
        """Return the newest decisions about a generation of a job with the addresses of their nodes.

        Parameters
        ----------
        job : str
            The job.
        generation : int
            Its generation.
        last : int, optional
            How many at most; all that are kept if left out.

        Returns
        -------
        list of (Decision, list of str)
            Oldest first; addresses in the order in which the decision numbers nodes.
        """
        addresses = dict(self._addresses)
        found = [decision for decision in self.log.of(job) if decision.generation == generation]
        newest = found if last is None else found[max(0, len(found) - last) :]
        return [(decision, addresses[decision.number]) for decision in newest]

    def newest(self, job: str, generation: int) -> Decision | None:
        """Return the newest decision about a generation of a job."""
        found = [decision for decision in self.log.of(job) if decision.generation == generation]
        return found[-1] if found else None

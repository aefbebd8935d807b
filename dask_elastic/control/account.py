"""What is said of the decisions of one tick: each once, and again only when something about it is new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dask_elastic.control.demand import Demand
from dask_elastic.control.guard import Owner, Step
from dask_elastic.control.reason import reason
from dask_elastic.control.seats import change
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Portion
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, Outlook
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

Run = tuple[str, int]

_QUIET: object = (True, False, (), frozenset())
"""Nothing is amiss: the target can be reached, no core is lacking, no operator is bound, nothing is held back."""


@dataclass(frozen=True, eq=False)
class Case:
    """One job at one tick: what it needs, gets, and what changes.

    Parameters
    ----------
    job : JobSnapshot
        What is measured of it.
    demand : Demand
        What it needs.
    portion : Portion
        What it gets.
    slots : int
        Cores that there are for all jobs that share them.
    crowded : bool
        Whether those are fewer than executors.
    changes : tuple of Step
        What changes; where all of it is held back, or the job is a dry run, what would change.
    held : mapping
        Whose changes are held back, and why.
    """

    job: JobSnapshot
    demand: Demand
    portion: Portion
    slots: int
    crowded: bool
    changes: tuple[Step, ...] = ()
    held: Mapping[Owner, str] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        """Which run of which job."""
        return self.job.name, self.job.generation

    @property
    def applied(self) -> bool:
        """Whether something changes."""
        return not self.job.dry_run and any(step.owner not in self.held for step in self.changes)

    @property
    def wanted(self) -> dict[ExecutorId, int]:
        """Cores that the model asks for."""
        return {
            self.job.executors[place].executor: int(count)
            for place, count in zip(self.demand.places, self.demand.needed, strict=True)
        }


class Account:
    """Writes decisions; remembers what was said of each job.

    Parameters
    ----------
    settings : ControlSettings
        What reasons mention.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._said: dict[Run, tuple[object, object]] = {}
        self._written = 0

    def forget_all_but(self, runs: Iterable[Run]) -> None:
        """Forget the jobs that are gone."""
        self._said = {run: self._said[run] for run in runs if run in self._said}

    def decision(self, case: Case, outlook: Outlook, bound: Mapping[str, int], snapshot: Snapshot) -> Decision | None:
        """Return what there is to say about a job, None if that is nothing new.

        Parameters
        ----------
        case : Case
            The job.
        outlook : Outlook
            What there is to expect of it.
        bound : mapping of str to int
            Its operators that hold the GIL, and how many cores of a node help them.
        snapshot : Snapshot
            What it was decided from.
        """
        status = (outlook.feasible, outlook.starved > 0, outlook.bound, frozenset(case.held))
        proposed = frozenset((step.owner, tuple(step.after.tolist())) for step in case.changes)
        before, proposed_before = self._said.get(case.run, (_QUIET, None))
        if not case.applied and status == before and (not proposed or proposed == proposed_before):
            return None
        self._said[case.run] = (status, proposed)
        self._written += 1
        return Decision(
            number=self._written,
            time=snapshot.now,
            job=case.job.name,
            generation=case.job.generation,
            target=case.job.latency_target,
            measured=case.job.latency,
            predicted=outlook.predicted,
            feasible=outlook.feasible,
            wanted=case.wanted,
            changes=tuple(map(change, case.changes)),
            applied=case.applied,
            reason=reason(
                case.job,
                case.demand,
                case.portion,
                case.changes,
                case.held,
                snapshot.nodes,
                bound,
                None if case.crowded else case.slots,
                self._settings,
            ),
            starved=outlook.starved,
            bound=outlook.bound,
            moved_bytes=float(sum(step.moved_bytes for step in case.changes)),
        )

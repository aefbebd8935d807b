"""The next decision about a job, before it is made: its changes, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dask_elastic.control.explanation.amounts import cores, joined, latency, size
from dask_elastic.control.explanation.planned_groups import PlannedGroups
from dask_elastic.control.explanation.planned_homes import PlannedHomes
from dask_elastic.control.reason import duration
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class PlannedChange:
    """A change of the cores of one executor that is planned.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    before, after : mapping of str to int
        Cores by the address of the worker.
    moved_bytes : float
        Bytes of state that are expected to move to another worker.
    pause : float or None
        Seconds for which the rows of a shard that moves are expected to wait: the median of the job's shard moves so
        far, between workers if state moves; None if there were none.
    deferred : str or None
        Why the change is not made yet; None if it is.

    Examples
    --------
    >>> print(PlannedChange(ExecutorId("count", 0), {"tcp://a:1": 1}, {"tcp://a:1": 2}, 0.0, 0.002, None))
    count[0]: 1 core on tcp://a:1 → 2 cores on tcp://a:1; 0 bytes of state move; each shard pauses for 2 ms
    """

    executor: ExecutorId
    before: Mapping[str, int]
    after: Mapping[str, int]
    moved_bytes: float
    pause: float | None
    deferred: str | None

    def __str__(self) -> str:
        parts = [f"{self.executor}: {_places(self.before)} → {_places(self.after)}"]
        parts.append(f"{size(self.moved_bytes)} of state move")
        parts.append(
            "pause not measured yet" if self.pause is None else f"each shard pauses for {duration(self.pause)}"
        )
        parts += [] if self.deferred is None else [f"deferred, because {self.deferred}"]
        return "; ".join(parts)


@dataclass(frozen=True)
class PlannedDecision:
    """What the control loop would decide now about a job; nothing is changed.

    Parameters
    ----------
    job : str
        The name of the job.
    target, measured : float or None
        Seconds of mean latency: the target, and the measurement.
    unchanged, predicted : float or None
        What the model predicts without and with the changes, in seconds; ``inf`` if queues grow, None if it cannot
        tell, for example while an executor is overloaded.
    changes : tuple of PlannedChange
        The changes of cores; none if the cores are right.
    reason : str
        Why the cores change, or why they do not.
    feasible : bool
        Whether any allocation meets the target.
    starved : int
        Cores that the job lacks: needed but not available.
    homes : PlannedHomes or None
        What the placement loop would decide about the job's homes; None with ``placement="spread"``.
    groups : PlannedGroups or None
        What the planning of key groups would decide about those of the job; None if they do not move, and with
        ``placement="spread"``.
    ended : str
        How the job ended, such as ``"finished"``; empty while it runs. No decision about an ended job follows; this is
        the one that its last measurements suggest.

    Examples
    --------
    `Job.plan` returns one of a running job:

    >>> change = PlannedChange(ExecutorId("count", 0), {"tcp://a:1": 1}, {"tcp://b:1": 1}, 1024.0, 0.02, None)
    >>> planned = PlannedDecision("words", 0.1, 0.04, 0.05, 0.05, (change,), "a:1 is retiring.", True, 0)
    >>> planned.moved_bytes, planned.pause
    (1024.0, 0.02)
    """

    job: str
    target: float | None
    measured: float | None
    unchanged: float | None
    predicted: float | None
    changes: tuple[PlannedChange, ...]
    reason: str
    feasible: bool
    starved: int
    homes: PlannedHomes | None = None
    groups: PlannedGroups | None = None
    ended: str = ""

    @property
    def moved_bytes(self) -> float:
        """Bytes of state that are expected to move: of shards to another worker, of key groups to another executor."""
        groups = 0.0 if self.groups is None else self.groups.moved_bytes
        return sum(change.moved_bytes for change in self.changes) + groups

    @property
    def pause(self) -> float | None:
        """The longest expected pause of a shard or a key group in seconds; None if none is known."""
        groups = None if self.groups is None else self.groups.pause
        pauses = [change.pause for change in self.changes]
        return max((pause for pause in [*pauses, groups] if pause is not None), default=None)

    def __str__(self) -> str:
        latencies = [
            f"{name} {latency(seconds)}"
            for name, seconds in (
                ("target", self.target),
                ("measured", self.measured),
                ("predicted without a change", self.unchanged),
                ("predicted", self.predicted),
            )
            if seconds is not None
        ]
        count = len(self.changes)
        title = f"{self.job}: {count or 'no'} {'change' if count < 2 else 'changes'}"
        lines = [f"{title}; {joined(latencies)}" if latencies else title]
        lines += [f"{self.ended}: no decision follows; its last measurements suggest this one"] if self.ended else []
        lines.append(self.reason)
        placed = [str(one) for one in (self.homes, self.groups) if one is not None]
        return "\n".join([*lines, *(f"  {change}" for change in self.changes), *placed])


def _places(held: Mapping[str, int]) -> str:
    return joined(f"{cores(count)} on {address}" for address, count in sorted(held.items())) if held else cores(0)

"""The next decision about the homes of a job, before it is made: its moves, and what they cost and gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_elastic.control.explanation.amounts import joined, size
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.control.reason import duration
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import HOME, NONE
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

if TYPE_CHECKING:
    from dask_elastic.control.placement.decision import PlacementDecision
    from dask_elastic.control.placement.settings import PlacementSettings
    from dask_elastic.vocab.plan import HomeMove


@dataclass(frozen=True)
class PlannedHomeMove:
    """A move of the home of one executor that is planned.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    source, target : str
        The addresses of its home and of its new home.
    moved_bytes : float
        Bytes of state that move.
    pause : float
        Seconds for which its rows are expected to wait.
    gain : float
        The decrease of the load distance, as a share of the mean load of a node.
    traffic : float
        Bytes per second that no longer pass between workers; negative where more of them do.
    deferred : bool
        Whether the move is not made yet.
    strategy : {"home", "labelled", "none"}
        Whether the home moves, its shards move while the home stays, or nothing does, since rows wait less then.

    Examples
    --------
    >>> move = PlannedHomeMove(ExecutorId("count", 0), "tcp://a:1", "tcp://b:1", 2.0**20, 0.055, 0.5, -2048.0, False)
    >>> print(move)
    home of count[0]: tcp://a:1 → tcp://b:1; 1.0 MiB of state; pause 55 ms; load distance −50 % of the mean;
    traffic between workers +2.0 kiB/s
    """

    executor: ExecutorId
    source: str
    target: str
    moved_bytes: float
    pause: float
    gain: float
    traffic: float
    deferred: bool
    strategy: str = HOME

    def __str__(self) -> str:
        if self.strategy == NONE:
            return f"home of {self.executor}: stays at {self.source} and not {self.target}, since rows wait less so"
        what = "home" if self.strategy == HOME else "shards"
        parts = [
            f"{what} of {self.executor}: {self.source} → {self.target}",
            f"{size(self.moved_bytes)} of state",
            f"pause {duration(self.pause)}",
            f"load distance {_signed(-self.gain)}{abs(100 * self.gain):.0f} % of the mean",
        ]
        if self.traffic:
            parts.append(f"traffic between workers {_signed(-self.traffic)}{size(abs(self.traffic))}/s")
        return "; ".join([*parts, *(["deferred"] if self.deferred else [])])


@dataclass(frozen=True)
class PlannedHomes:
    """What the placement loop would decide now about the homes of a job; nothing is changed.

    Parameters
    ----------
    placement : str
        The placement of the job.
    moves : tuple of PlannedHomeMove
        The moves; none if the homes are right.
    reason : str
        Why homes move, or why they do not.
    bottleneck : str
        The resource that is balanced: the most used one.
    distance, planned_distance : float
        The load distance now and after the moves, as a share of the mean load of a node.
    collocation, planned_collocation : float
        The part of the traffic that stays within workers, now and after the moves.
    add : int
        Workers that the load needs in addition.
    remove : tuple of str
        Addresses of workers that it does not need.

    Examples
    --------
    >>> print(PlannedHomes("flux", (), "homes are right.", "processor time", 0.1, 0.1, 0.5, 0.5, 1, ()))
    placement 'flux': load distance 10 % of the mean (processor time), 50 % of the traffic within workers
    homes are right.
    1 more worker is wanted
    """

    placement: str
    moves: tuple[PlannedHomeMove, ...]
    reason: str
    bottleneck: str
    distance: float
    planned_distance: float
    collocation: float
    planned_collocation: float
    add: int
    remove: tuple[str, ...]

    def __str__(self) -> str:
        distance, inside = f"{100 * self.distance:.0f} %", f"{100 * self.collocation:.0f} %"
        if self.moves:
            distance += f" → {100 * self.planned_distance:.0f} %"
            inside += f" → {100 * self.planned_collocation:.0f} %"
        resource = f" ({self.bottleneck})" if self.bottleneck else ""
        lines = [
            f"placement {self.placement!r}: load distance {distance} of the mean{resource}, "
            f"{inside} of the traffic within workers",
            self.reason,
        ]
        if self.add:
            lines.append(f"{self.add} more {'worker is' if self.add == 1 else 'workers are'} wanted")
        if self.remove:
            lines.append(f"not needed: {joined(self.remove)}")
        return "\n".join([*lines, *(f"  {move}" for move in self.moves)])


def planned_homes(
    job: JobSnapshot, snapshots: Sequence[Snapshot], current: Snapshot, settings: PlacementSettings | None = None
) -> PlannedHomes | None:
    """Return what the placement loop would decide now about a job.

    Parameters
    ----------
    job : JobSnapshot
        The job, as in `current`.
    snapshots : sequence of Snapshot
        Earlier ones, oldest first.
    current : Snapshot
        The present one.
    settings : PlacementSettings, optional
        The settings of the placement loop; the defaults if not given.

    Returns
    -------
    PlannedHomes or None
        None if the job has no planner of homes.
    """
    if job.placement == SPREAD or job.paradigm != "executor-centric":
        return None
    # Planners of placements import SciPy, which takes long.
    from dask_elastic.control.placement.loop import PlacementLoop

    loop = PlacementLoop(settings)
    for snapshot in snapshots:
        loop.tick(snapshot)
    return next(
        _shown(one, current) for one in loop.decide(current) if (one.job, one.generation) == (job.name, job.generation)
    )


def _shown(decision: PlacementDecision, current: Snapshot) -> PlannedHomes:
    moves = [(move, False) for move in decision.moves]
    moves += [(move, True) for move in (*decision.deferred, *decision.kept)]
    return PlannedHomes(
        decision.placement,
        tuple(_shown_move(move, deferred, current) for move, deferred in moves),
        decision.reason,
        decision.bottleneck,
        decision.distance,
        decision.planned_distance,
        decision.collocation,
        decision.planned_collocation,
        decision.add,
        decision.remove,
    )


def _shown_move(move: HomeMove, deferred: bool, current: Snapshot) -> PlannedHomeMove:
    source, target = (current.nodes[node].address for node in (move.source, move.target))
    return PlannedHomeMove(
        move.executor, source, target, move.moved_bytes, move.pause, move.gain, move.traffic, deferred, move.strategy
    )


def _signed(value: float) -> str:
    return "−" if value < 0 else "+"

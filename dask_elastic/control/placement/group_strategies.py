"""How a plan of key groups is carried out: progressively or synchronised, by the waiting of rows.

Goal
    Rows wait least, in row-seconds, the unit of all moves.
Method
    A progressive plan consists of mini-migrations, one after the other. In each, the rows of its groups wait until
    their executors have processed what is queued, and until what has changed of their state since it was copied has
    arrived: which share of all state this is, earlier moves tell. Meanwhile the plan gains little:
    where an executor is full, rows queue that balanced executors could process. A synchronised plan lets all rows of
    the operator wait, for the longest queue and for all state, but once. What a pause and the preparation of a move
    take besides queues is measured for each of the two.
Not done
    A mixture of both in one plan, and the waiting of rows of operators downstream.

Notes
-----
State migration, section 3.2 (progressive migration); Elasticutor, section 2.2 (global synchronisation); decision 94 for
the unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dask_elastic.control.placement.move_rates import KEPT, MeasuredMoves
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.migration.group_move import PROGRESSIVE, SYNCHRONISED
from dask_elastic.migration.strategy import BETWEEN_EXECUTORS
from dask_elastic.vocab.counted import three_digits
from dask_elastic.vocab.plan import StrategyCost

_FULL = 0.95
"""From this use on an executor counts as full: rows queue there, or are held back at their sources."""

_NAMES = {PROGRESSIVE: "if groups move progressively", SYNCHRONISED: "if all instances pause"}


@dataclass(frozen=True)
class GroupsMoving:
    """Groups that move at the same time.

    Parameters
    ----------
    rows : float
        Rows per second that wait for them.
    nbytes : float
        Bytes of their state.
    drain : float
        Seconds until what they wait for has been processed: the queued rows of these groups, or of all if instances
        pause, at the executor where this takes longest.
    """

    rows: float
    nbytes: float
    drain: float


class MeasuredGroupMoves:
    """Learns from the moves of a cluster how long moves of groups take by each strategy.

    Parameters
    ----------
    settings : PlacementSettings
        The rates that stand in until moves are measured.

    Examples
    --------
    >>> measured = MeasuredGroupMoves(PlacementSettings(handover=0.05, transfer=100e6))
    >>> groups = GroupsMoving(rows=100.0, nbytes=10e6, drain=0.2)
    >>> round(measured.pause("progressive", groups), 3), measured.lead("progressive")
    (0.35, 0.05)
    >>> for _ in range(50):
    ...     measured.observe("progressive", 0.2, nbytes=10e6, paused_bytes=1e4, pause=0.21, seconds=0.22)
    >>> round(measured.pause("progressive", groups), 2), round(measured.lead("progressive"), 3)
    (0.21, 0.01)
    """

    def __init__(self, settings: PlacementSettings):
        self._assumed = settings.handover
        self._moves = {strategy: MeasuredMoves(settings) for strategy in BETWEEN_EXECUTORS}
        self._leads: dict[str, deque[float]] = {strategy: deque(maxlen=KEPT) for strategy in BETWEEN_EXECUTORS}

    def observe(
        self, strategy: str, drain: float, nbytes: float, paused_bytes: float, pause: float, seconds: float
    ) -> None:
        """Take in a move.

        Parameters
        ----------
        strategy : {"progressive", "synchronised"}
            How the groups moved.
        drain : float
            Seconds of the pause that were expected for what was queued before the groups.
        nbytes : float
            Bytes of state that moved.
        paused_bytes : float
            Those that moved while rows waited.
        pause : float
            Seconds for which rows waited at most.
        seconds : float
            Seconds that the move took in all.
        """
        self._moves[strategy].observe(nbytes, paused_bytes, max(pause - drain, 0.0))
        self._leads[strategy].append(max(seconds - pause, 0.0))

    def pause(self, strategy: str, groups: GroupsMoving) -> float:
        """Return the seconds for which rows are expected to wait for groups that move."""
        return groups.drain + self._moves[strategy].rates().pause(groups.nbytes)

    def paused_share(self, strategy: str) -> float:
        """Return the share of the state that is expected to move while rows wait."""
        return self._moves[strategy].rates().paused

    def lead(self, strategy: str) -> float:
        """Return the seconds that a move takes besides the pause."""
        leads = self._leads[strategy]
        return sum(leads) / len(leads) if leads else self._assumed


def group_costs(
    minis: Sequence[GroupsMoving],
    all_rows: float,
    longest_drain: float,
    loads: Sequence[float],
    measured: MeasuredGroupMoves,
) -> tuple[StrategyCost, ...]:
    """Return what carrying out a plan costs, progressively and synchronised.

    Parameters
    ----------
    minis : sequence of GroupsMoving
        The mini-migrations of the plan; at least one.
    all_rows : float
        Rows per second of the operator.
    longest_drain : float
        Seconds until all executors have processed what is queued.
    loads : sequence of float
        The load of each executor before the plan, in cores; each has one.
    measured : MeasuredGroupMoves
        What moves take.

    Returns
    -------
    tuple of StrategyCost
        In the order of `BETWEEN_EXECUTORS`.

    Examples
    --------
    >>> measured = MeasuredGroupMoves(PlacementSettings(handover=0.05, transfer=100e6))
    >>> few = [GroupsMoving(rows=100.0, nbytes=1e6, drain=0.1)]
    >>> [(cost.strategy, round(cost.waiting, 1)) for cost in group_costs(few, 1e4, 0.1, [0.6, 0.2], measured)]
    [('progressive', 2.1), ('synchronised', 213.3)]
    >>> many = few * 40
    >>> [round(cost.waiting) for cost in group_costs(many, 1e4, 0.1, [1.0, 0.5], measured)]
    [78605, 6054]
    """
    mean = sum(loads) / len(loads)
    spare = 1 - min(mean, _FULL)
    worst = max(loads)
    queueing = all_rows * (worst / mean - 1) if worst >= _FULL else 0.0
    whole = GroupsMoving(all_rows, sum(one.nbytes for one in minis), longest_drain)
    pauses = [measured.pause(PROGRESSIVE, one) for one in minis]
    lasts = sum(pauses) + len(minis) * measured.lead(PROGRESSIVE)
    paused = sum(one.rows * pause**2 for one, pause in zip(minis, pauses, strict=True)) / (2 * spare)
    # The imbalance falls from mini-migration to mini-migration, to nothing in the end.
    progressive = paused + queueing * lasts**2 / 3
    stop, lead = measured.pause(SYNCHRONISED, whole), measured.lead(SYNCHRONISED)
    # During the pause all rows wait, those included that would have queued.
    synchronised = all_rows * stop**2 / (2 * spare) + queueing * lead**2 / 2
    return (
        StrategyCost(PROGRESSIVE, progressive, whole.nbytes, max(pauses), 0.0),
        StrategyCost(SYNCHRONISED, synchronised, whole.nbytes, stop, 0.0),
    )


def compared(costs: Sequence[StrategyCost], strategy: str) -> str:
    """Return what a plan costs by the chosen strategy and by the other one, as a sentence for people.

    Examples
    --------
    >>> costs = (StrategyCost("progressive", 2.13, 1e6, 0.1, 0.0), StrategyCost("synchronised", 213.0, 1e6, 0.1, 0.0))
    >>> compared(costs, "progressive")
    'Rows wait for 2.13 row-seconds if groups move progressively, 213 if all instances pause.'
    """
    first, second = sorted(costs, key=lambda cost: cost.strategy != strategy)
    instead = f"{three_digits(second.waiting)} {_NAMES[second.strategy]}"
    return f"Rows wait for {three_digits(first.waiting)} row-seconds {_NAMES[first.strategy]}, {instead}."

"""Plans: the core changes that the control loop decides on, and the reasons for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dask_elastic.vocab.cores.change_columns import ChangeColumns
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.cores.wanted_cores import WantedCores
from dask_elastic.vocab.identity import ExecutorId

NONE, LABELLED, HOME = "none", "labelled", "home"
"""Strategies: nothing moves; shards move to tasks on the other node, and the home stays; or the home moves."""


@dataclass(frozen=True)
class StrategyCost:
    """What a move of the home of one executor costs, or what is done instead of it.

    Parameters
    ----------
    strategy : {"none", "labelled", "home", "progressive", "synchronised"}
        Nothing moves; shards move to tasks on the other node, and the home stays; or the home moves. For a plan of key
        groups: they move progressively, or while the upstream instances pause.
    waiting : float
        Row-seconds for which rows on both nodes wait while the placement lasts: for their turn, for the network, and
        for the move.
    moved_bytes : float
        Bytes of state that move, once.
    pause : float
        Seconds for which rows wait: those of the executor if its home moves, of one shard if shards move.
    traffic : float
        Bytes per second between nodes that another strategy would save.
    allowed : bool
        Whether it can be chosen: there are slots for the tasks, and the planner's reason for the move permits it.
    """

    strategy: str
    waiting: float
    moved_bytes: float
    pause: float
    traffic: float
    allowed: bool = True


@dataclass(frozen=True)
class HomeMove:
    """A move of the home of one executor to another node, or of its shards, with its expected costs and gains.

    Parameters
    ----------
    job : str
        The name of the job.
    generation : int
        The generation of the job.
    executor : ExecutorId
        The executor.
    source, target : int
        Its home and the planned one, numbered as in the snapshot.
    moved_bytes : float
        Bytes of state that move.
    pause : float
        Seconds for which its rows are expected to wait.
    gain : float
        The decrease of the load distance, as a share of the mean load of a node; negative where balance gets worse.
    traffic : float
        Bytes per second that no longer pass between nodes; negative where more of them do.
    costs : tuple of StrategyCost
        What each strategy costs.
    strategy : {"none", "labelled", "home"}
        The chosen one. The other values are those of this strategy.
    """

    job: str
    generation: int
    executor: ExecutorId
    source: int
    target: int
    moved_bytes: float
    pause: float
    gain: float
    traffic: float
    costs: tuple[StrategyCost, ...] = ()
    strategy: str = HOME


@dataclass(frozen=True)
class HomeForecast:
    """Why a planner moves the home of one executor or its shards, and what it expects.

    Parameters
    ----------
    placement : str
        The placement that decided.
    moved_bytes : float
        Bytes of state that are expected to move.
    pause : float
        Seconds for which rows of the executor are expected to wait.
    gain : float
        The decrease of the load distance, as a share of the mean load of a node.
    traffic : float
        Bytes per second that no longer pass between nodes; negative where more of them do.
    costs : tuple of StrategyCost
        What each strategy costs.
    strategy : {"none", "labelled", "home"}
        The chosen one.
    """

    placement: str
    moved_bytes: float
    pause: float
    gain: float
    traffic: float
    costs: tuple[StrategyCost, ...] = ()
    strategy: str = HOME


@dataclass(frozen=True)
class HomeChange:
    """A move of the home of one executor.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    source, target : str
        The addresses of the workers.
    moved_bytes : float
        Bytes of state that were sent; those expected if the move was not carried out.
    pause : float
        Seconds for which rows of the executor waited; those expected if the move was not carried out.
    forecast : HomeForecast or None
        What the planner expected; None if no planner asked for the move.
    paused_bytes : float
        Bytes of state that were sent during the pause.
    """

    executor: ExecutorId
    source: str
    target: str
    moved_bytes: float
    pause: float
    forecast: HomeForecast | None = None
    paused_bytes: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A decision for one job: its inputs, its reason, and the latency measured later.

    Parameters
    ----------
    number : int
        The number of the decision in its control loop.
    time : float
        The time of the decision, in seconds.
    job : str
        The name of the job.
    generation : int
        The generation of the job.
    target : float or None
        The latency target, in seconds.
    measured : float or None
        The measured latency, in seconds.
    predicted : float or None
        The latency that the model predicts for the allocation decided on, in seconds; None without a prediction.
    feasible : bool
        Whether any allocation meets the target.
    wanted : mapping of ExecutorId to int
        Cores that the model asks for.
    changes : sequence of CoreChange
        The core changes, kept in columns.
    applied : bool
        Whether the changes were carried out; False in a dry run, or if the guard withheld them.
    reason : str
        The reason, as a sentence for people.
    starved : int
        Cores that the job lacks: needed but not available.
    bound : tuple of str
        Operators bound by the GIL, for which another core on the same node does not help.
    moved_bytes : float
        Bytes of state that are expected to move to another node.
    observed : float or None
        The latency measured some periods later, in seconds; None until then.
    seconds : float
        The duration of the decision, in seconds.
    homes : tuple of HomeChange
        The homes that have moved; if the decision is not applied, those that would move.
    others : tuple of str
        What else has changed, as text: key groups that have moved, a restart.
    """

    number: int
    time: float
    job: str
    generation: int
    target: float | None
    measured: float | None
    predicted: float | None
    feasible: bool
    wanted: Mapping[ExecutorId, int]
    changes: Sequence[CoreChange]
    applied: bool
    reason: str
    starved: int = 0
    bound: tuple[str, ...] = ()
    moved_bytes: float = 0.0
    observed: float | None = None
    seconds: float = 0.0
    homes: tuple[HomeChange, ...] = ()
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", ChangeColumns.of(self.changes))
        object.__setattr__(self, "wanted", WantedCores.of(self.wanted))


@dataclass(frozen=True)
class Outlook:
    """The control loop's forecast for a job in one period, with or without a decision.

    Parameters
    ----------
    predicted : float or None
        The latency that the model predicts for the job's cores after this period, in seconds; None without a
        prediction, ``inf`` if queues are expected to grow.
    feasible : bool
        Whether any allocation meets the target.
    starved : int
        Cores that the job lacks: needed but not available.
    bound : tuple of str
        Operators bound by the GIL.
    """

    predicted: float | None = None
    feasible: bool = True
    starved: int = 0
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The result of one period of the control loop: changes to carry out, and the decisions behind them.

    Parameters
    ----------
    changes : tuple of CoreChange
        Changes to carry out; those that give up cores come before those that take some.
    decisions : tuple of Decision
        At most one for each job, if it differs from the job's last decision.
    outlook : mapping of str to Outlook
        The forecast for each job, by the job's name.
    """

    changes: tuple[CoreChange, ...] = ()
    decisions: tuple[Decision, ...] = ()
    outlook: Mapping[str, Outlook] = field(default_factory=dict)

"""What the control loop decides: changes of cores, and the record of why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class CoreChange:
    """Other cores for one executor.

    Parameters
    ----------
    job : str
        Name of the job.
    generation : int
        Which run of it.
    executor : ExecutorId
        The executor.
    before, after : mapping of int to int
        Cores by node, as the snapshot numbers its nodes; nodes without cores are left out.
    moved_bytes : float
        State that is expected to leave its node.
    """

    job: str
    generation: int
    executor: ExecutorId
    before: Mapping[int, int]
    after: Mapping[int, int]
    moved_bytes: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What was decided for one job at one moment, from what, why, and what came of it.

    Parameters
    ----------
    number : int
        Counts the decisions of a control loop.
    time : float
        When, in seconds.
    job : str
        Name of the job.
    generation : int
        Which run of it.
    target : float or None
        Seconds of latency that were wanted.
    measured : float or None
        Seconds of latency that were measured.
    predicted : float or None
        Seconds of latency that the model expects of the cores that the decision gives; None when it cannot say.
    feasible : bool
        Whether any allocation reaches the target.
    wanted : mapping of ExecutorId to int
        Cores that the model asked for.
    changes : tuple of CoreChange
        What changes.
    applied : bool
        Whether the changes were carried out: not in a dry run, and not when the guard held them back.
    reason : str
        Why, in a sentence that people read.
    starved : int
        Cores that the job would need beyond those that it can have.
    bound : tuple of str
        Operators whose threads hold the GIL: another core on the same node does not help them.
    moved_bytes : float
        State that is expected to leave its node.
    observed : float or None
        Seconds of latency that were measured some periods later; None until then.
    seconds : float
        How long deciding took.
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
    changes: tuple[CoreChange, ...]
    applied: bool
    reason: str
    starved: int = 0
    bound: tuple[str, ...] = ()
    moved_bytes: float = 0.0
    observed: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Outlook:
    """What the control loop thinks of a job at one moment, whether or not there is something to decide.

    Parameters
    ----------
    predicted : float or None
        Seconds of latency that the model expects of the cores that the job has after this period; None when it cannot
        say, ``inf`` when it expects queues to grow.
    feasible : bool
        Whether any allocation reaches the target.
    starved : int
        Cores that the job would need beyond those that it can have.
    bound : tuple of str
        Operators whose threads hold the GIL.
    """

    predicted: float | None = None
    feasible: bool = True
    starved: int = 0
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The outcome of one period: changes to carry out, and the decisions that say why.

    Parameters
    ----------
    changes : tuple of CoreChange
        To be carried out, cores that are given up before cores that are taken.
    decisions : tuple of Decision
        One for each job about which there is something new to say.
    outlook : mapping of str to Outlook
        What there is to expect of each job, by its name.
    """

    changes: tuple[CoreChange, ...] = ()
    decisions: tuple[Decision, ...] = ()
    outlook: Mapping[str, Outlook] = field(default_factory=dict)

"""The problems of interval planners: one migration, or a sequence of migrations that is known beforehand.

Notes
-----
State migration (Ding et al.), Definitions 4.1 and 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from dask_elastic.planning.turns import no_pause


@dataclass(frozen=True, eq=False)
class IntervalProblem:
    """Tasks with loads and states, the interval of each node now, and how many nodes there will be.

    Parameters
    ----------
    load : array of float
        The load of each task, in any unit.
    state_bytes : array of float
        The size of each task's state.
    intervals : array of int, nodes × 2
        The tasks of each node now, half-open; empty for a node without tasks.
    nodes : int
        The number of nodes after the migration.
    tau : float
        How far a node's load may exceed the mean, as a share of it; 0 or more.
    allow_empty : bool
        Whether a node may be left without tasks.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Notes
    -----
    State migration, Definition 4.1. Planners check the values.
    """

    load: ArrayLike
    state_bytes: ArrayLike
    intervals: ArrayLike
    nodes: int
    tau: float
    allow_empty: bool = True
    pause: Callable[[], None] = no_pause


@dataclass(frozen=True, eq=False)
class SequenceProblem:
    """A sequence of migrations whose node counts, loads and sizes are known beforehand.

    Parameters
    ----------
    load, state_bytes : array of float, tasks or steps × tasks
        Load and state of each task, the same for all steps or per step.
    intervals : array of int, nodes × 2
        The tasks of each node before the first step, half-open; empty for a node without tasks.
    nodes_sequence : sequence of int
        The number of nodes after each step.
    tau : float or sequence of float
        How far a node's load may exceed the mean, as a share of it, for all steps or per step.
    allow_empty : bool
        Whether a node may be left without tasks.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Notes
    -----
    State migration, Definition 5.1. Planners check the values.
    """

    load: ArrayLike
    state_bytes: ArrayLike
    intervals: ArrayLike
    nodes_sequence: Sequence[int]
    tau: float | Sequence[float]
    allow_empty: bool = True
    pause: Callable[[], None] = no_pause

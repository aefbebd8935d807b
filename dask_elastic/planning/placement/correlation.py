"""CLB: separates groups whose loads are correlated.

Goal
    Low variance of the bins' loads over many windows, so that migrations are rarely needed.
Heuristic
    The set of all groups is split repeatedly, each time by the group that is most correlated with its set: groups
    correlated with it above a threshold leave the set, the others stay. Sets are matched to bins so that least state
    moves.
Not done
    Capacities in the split: sets are made for equal bins.

Notes
-----
ELB/CLB, section 4 (Algorithm 2). First erratum: the sentence on which substreams stay contradicts the formula after it;
the formula holds, so substreams with a covariance of θ or more move to the other set. Fifth erratum: a θ between 0 and
1 fits correlations, so covariances are normalised before they are compared with it; a split can be empty, then the
largest other substream moves; sets are matched to instances so that least state moves. Fourth erratum: the covariances
minimise Σ var(N_i), which is not equivalent to Σ var(L_j) as the paper has it; exact weights are Σ_t y_it y_jt. Since
loads are positive, nearly all pairs are related by exact weights; so at most half of a set's load leaves it at a time,
the most related groups first. Otherwise each split would separate one substream from all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.matching import best_columns
from dask_elastic.planning.placement.check import approach, settle
from dask_elastic.planning.placement.correlated_sets import split
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number, is_whole

_WEIGHTS = ("printed", "exact")


@dataclass(frozen=True)
class Correlation:
    """Plan by splitting correlated groups.

    Parameters
    ----------
    threshold : float
        θ, the correlation from which two groups are separated, from 0 to below 1.
    weights : {"printed", "exact"}
        Covariances as printed, or products, whose sum over groups on one bin is the objective itself.
    windows : int, optional
        The number of latest windows of `history` that count; all if left out. Without history the loads are the only
        window.

    Raises
    ------
    PlanningError
        If an option is out of range.

    Notes
    -----
    ELB/CLB, section 4.

    Examples
    --------
    >>> history = [[9, 1, 9, 1], [1, 9, 1, 9], [9, 1, 9, 1]]
    >>> problem = PlacementProblem([9, 1, 9, 1], current=[0, 1, 0, 1], bins=2, history=history)
    >>> Correlation().plan(problem).bin.tolist()
    [1, 1, 0, 1]
    """

    threshold: float = 0.3
    weights: str = "exact"
    windows: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.threshold) and 0 <= self.threshold < 1):
            raise PlanningError(f"threshold is {self.threshold!r}: give 0 or more, and less than 1.")
        if not isinstance(self.weights, str) or self.weights not in _WEIGHTS:
            raise PlanningError(f"weights is {self.weights!r}: choose one of {', '.join(_WEIGHTS)}.")
        if self.windows is not None and not (is_whole(self.windows) and self.windows >= 1):
            raise PlanningError(f"windows is {self.windows!r}: give 1 or more, or None for all.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load left to drain, and the sum over windows of the loads' variance."""
        problem.pause()
        series = self._series(problem)
        strength, there = problem.strength[problem.live], bin >= 0
        place = np.arange(len(series))[:, None] * problem.bins + bin[there]
        sums = np.bincount(place.ravel(), series[:, there].ravel(), len(series) * problem.bins)
        loads = sums.reshape(len(series), problem.bins)[:, problem.live]
        away = loads / strength - (series.sum(axis=1) / strength.sum())[:, None]
        return problem.to_drain(bin), float((strength * away**2).sum() / strength.sum())

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return a placement; the seed is ignored."""
        return problem.placement(settle(problem, self._once))

    def _once(self, problem: PlacementProblem) -> Ints:
        bin = Draft(problem).bin
        key = self.objective(problem, bin)
        series, exact = self._series(problem), self.weights == "exact"
        label = split(series, int(problem.live.sum()), self.threshold, exact, problem.pause)
        while True:
            wanted = match(problem, label, bin)
            best = None
            for found in (approach(problem, wanted), self._only_better(problem, bin, wanted)):
                value = self.objective(problem, found)
                if better(value, key):
                    best, key = found, value
            if best is None:
                return bin
            bin = best

    def _series(self, problem: PlacementProblem) -> Floats:
        """Return the loads as windows × groups."""
        if problem.history is None:
            return problem.weight[None, :]
        return problem.history[-self.windows :] if self.windows else problem.history

    def _only_better(self, problem: PlacementProblem, bin: Ints, wanted: Ints) -> Ints:
        """Move groups towards the wanted bins, by moves that each lower the objective."""
        draft = Draft(problem)
        draft.take(bin)
        draft.drain()
        key = self.objective(problem, draft.bin)
        order = np.argsort(-problem.weight, kind="stable")
        for group in draft.movable(order, wanted):
            source = int(draft.bin[group])
            draft.move(group, int(wanted[group]))
            found = self.objective(problem, draft.bin)
            if better(found, key):
                key = found
            else:
                draft.move(group, source)
        return draft.bin


def match(problem: PlacementProblem, label: Ints, bin: Ints, drawn: Floats | None = None) -> Ints:
    """Match sets of groups to live bins so that least state moves, then fewest groups.

    Further ties: heavy sets go to bins of much capacity, then of little load.

    Parameters
    ----------
    problem : PlacementProblem
        The state of each group, and the bins that stay.
    label : array of int
        The set of each group; no more sets than live bins.
    bin : array of int
        The bin of each group.
    drawn : array of float, sets × bins, optional
        How much draws each set to each bin besides its state, which counts 1 in all.

    Returns
    -------
    array of int
        The bin that each group should get.

    Examples
    --------
    >>> import numpy as np
    >>> problem = PlacementProblem([1, 1, 1], [0, 1, 1], 2, state_bytes=[5, 1, 1])
    >>> match(problem, np.array([1, 0, 1]), problem.current).tolist()
    [0, 1, 0]
    """
    problem.pause()
    live = np.flatnonzero(problem.live)
    whole = float(problem.state_bytes.sum()) or 1.0
    worth = problem.state_bytes / whole + 1e-5 / max(problem.groups, 1)
    sets, place = int(label.max(initial=0)) + 1, np.cumsum(problem.live) - 1
    there = bin >= 0
    near = there & problem.live[bin]
    row, column, kept = label[near], place[bin[near]], worth[near]
    if drawn is not None:
        drawing, drawer = np.nonzero(drawn[:, live])
        row, column = np.append(row, drawing), np.append(column, drawer)
        kept = np.append(kept, drawn[:, live][drawing, drawer])
    load = np.bincount(label[there], problem.weight[there], sets) / (float(problem.weight.sum()) or 1.0)
    room = problem.strength / problem.strength.sum() - 0.01 * problem.shares(bin) / (problem.mean or 1.0)
    order = 1e-8 / max(problem.groups, 1) * load, room[live]
    target = live[best_columns(row, column, kept, (sets, len(live)), order, problem.pause)[0]]
    result: Ints = target[label]
    return result

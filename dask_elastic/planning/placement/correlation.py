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
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import Floats, Ints, Mask, Placement, PlacementProblem
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
        label = split(self._series(problem), int(problem.live.sum()), self.threshold, self.weights == "exact")
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


def split(series: Floats, sets: int, threshold: float, exact: bool = False) -> Ints:
    """Split groups into sets so that correlated groups are separated.

    Parameters
    ----------
    series : array of float, windows × groups
        The load of each group in each window.
    sets : int
        The number of sets; fewer if there are fewer groups.
    threshold : float
        The correlation from which a group leaves the set of the chosen group.
    exact : bool
        Use products in place of covariances; then the most related leave, up to half of the load of their set.

    Returns
    -------
    array of int
        The set of each group.

    Notes
    -----
    ELB/CLB, Algorithm 2. Among equal contributions the group in the heavier set is chosen, then the lighter group, then
    the first.

    Examples
    --------
    >>> import numpy as np
    >>> split(np.array([[1.0, 2, 9], [3, 6, 2], [1, 2, 8]]), sets=2, threshold=0.5).tolist()
    [0, 1, 0]
    """
    centred = series if exact else series - series.mean(axis=0)
    product = centred.T @ centred / len(series)
    scale = np.sqrt(np.diag(product))
    scale[scale <= 1e-12 * float(series.max(initial=0))] = np.inf
    similarity = product / scale[:, None] / scale[None, :]
    related = similarity >= threshold
    # A group of constant load is correlated with no other, even at a threshold of 0.
    related &= np.isfinite(scale)[:, None] & np.isfinite(scale)[None, :]
    np.fill_diagonal(related, False)
    pull = np.where(related, product, 0.0)
    size = series.sum(axis=0)
    label = np.zeros(len(size), dtype=np.int64)
    contribution = pull.sum(axis=1)
    for made in range(1, min(sets, len(size))):
        chosen = _most_related(label, contribution, size)
        members = label == label[chosen]
        leaving = members & related[chosen]
        if not leaving.any():
            members[chosen] = False
            leaving[np.argmax(np.where(members, size, -np.inf))] = True
        elif exact:
            leaving = _most_similar(leaving, similarity[chosen], size, float(size[members].sum()) / 2)
        touched = np.flatnonzero(label == label[chosen])
        label[leaving] = made
        same = label[touched][:, None] == label[touched][None, :]
        contribution[touched] = (pull[np.ix_(touched, touched)] * same).sum(axis=1)
    return label


def _most_related(label: Ints, contribution: Floats, size: Floats) -> int:
    """Return the group with the greatest contribution among the sets of two or more."""
    count, load = np.bincount(label), np.bincount(label, size)
    # Two groups that are related only to each other contribute the same up to rounding.
    most = float(contribution.max(initial=0)) or 1.0
    rank = np.lexsort((np.arange(len(label)), size, -load[label], -np.round(contribution / most, 9)))
    return int(next(group for group in rank.tolist() if count[label[group]] > 1))


def _most_similar(leaving: Mask, similarity: Floats, size: Floats, most: float) -> Mask:
    """Return the groups that leave: most similar first, then heaviest; at least one, up to a total load of `most`."""
    groups = np.flatnonzero(leaving)
    order = groups[np.lexsort((-size[groups], -np.round(similarity[groups], 9)))]
    count = max(int(np.searchsorted(np.cumsum(size[order]), most, side="right")), 1)
    some: Mask = np.zeros(len(leaving), dtype=np.bool_)
    some[order[:count]] = True
    return some


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
    target = live[best_columns(row, column, kept, (sets, len(live)), order)[0]]
    result: Ints = target[label]
    return result

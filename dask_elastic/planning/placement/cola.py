"""COLA: collocates communicating groups by balanced graph partitioning.

Goal
    Little traffic between bins at a sufficient balance; a placement from scratch, as at submit.
Heuristic
    All groups are one part at first. The heaviest part is split in two, with little traffic cut, until the parts can be
    packed on the bins with sufficient balance, heaviest first onto the least loaded bin.
Not done
    Saving moves, except by the choice among equal bins for each part.

Notes
-----
ALBIC, sections 2.1 and 5.4, describe COLA without a listing. By the fifth erratum it suits the placement at submit, not
the running job: where no part of it within the budget is better than staying, nothing moves. METIS makes the
partitions and breaks ties by the numbers of groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dask_elastic.planning.placement.check import approach, settle
from dask_elastic.planning.placement.correlation import match
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.packing import packed
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better, collocation, load_distance
from dask_elastic.planning.placement.splits import Splits
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number


@dataclass(frozen=True)
class Cola:
    """Plan by partitioning the graph of traffic.

    Parameters
    ----------
    max_distance : float
        The sufficient load distance, as a share of the mean load.

    Raises
    ------
    PlanningError
        If it is negative.

    Notes
    -----
    ALBIC, section 2.1, after Khandekar et al. The seed is passed to METIS.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1, 1], [0, 0, 1, 1], 2, traffic=np.eye(4)[[2, 3, 0, 1]])
    >>> Cola().plan(problem).bin.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """

    max_distance: float = 0.2

    by_number = ("groups",)

    def __post_init__(self) -> None:
        if not (is_number(self.max_distance) and self.max_distance >= 0):
            raise PlanningError(f"max_distance is {self.max_distance!r}: give 0 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load left to drain, load distance above the sufficient one, traffic."""
        beyond = load_distance(problem, bin) - self.max_distance * problem.mean
        return problem.to_drain(bin), max(beyond, 0.0), 1 - collocation(problem, bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement found from scratch, as far as the rules allow, if it is better than staying."""
        return problem.placement(settle(problem, lambda part: self._once(part, seed)))

    def _once(self, problem: PlacementProblem, seed: int) -> Ints:
        draft = Draft(problem)
        best, key = draft.bin.copy(), self.objective(problem, draft.bin)
        draft.drain()
        for bin in (draft.bin, approach(problem, self._from_scratch(problem, seed))):
            problem.pause()
            found = self.objective(problem, bin)
            if better(found, key):
                best, key = bin, found
        return best

    def _from_scratch(self, problem: PlacementProblem, seed: int) -> Ints:
        splits = Splits(problem.traffic, problem.weight, seed, problem.pause)
        most = (1 + self.max_distance) * problem.mean * (1 + SLACK)
        count = min(int(problem.live.sum()), problem.groups)
        while True:
            last = count == problem.groups
            bin = packed(problem, *splits.parts(count), math.inf if last else most)
            if bin is not None and (last or load_distance(problem, bin) <= self.max_distance * problem.mean):
                return _exchanged(problem, bin)
            # Packing is tried again when the number of parts has grown by a quarter.
            count = min(math.ceil(1.25 * count), problem.groups)


def _exchanged(problem: PlacementProblem, bin: Ints) -> Ints:
    """Exchange equal bins for traffic with pinned groups, then for state."""
    if problem.capacity is not None:
        return bin
    packed = np.searchsorted(np.unique(bin), bin)
    return match(problem, packed, problem.current, _drawn(problem, packed))


def _drawn(problem: PlacementProblem, label: Ints) -> Floats | None:
    """Return the traffic of each set with the pinned groups of each bin, which in all counts twice as much as state."""
    fixed = np.flatnonzero(problem.pinned & problem.placed)
    if problem.traffic is None or not len(fixed):
        return None
    problem.pause()
    both = (problem.traffic + problem.traffic.T).tocsc()[:, fixed].tocoo()
    problem.pause()
    drawn = np.zeros((int(label.max()) + 1, problem.bins))
    np.add.at(drawn, (label[both.row], problem.current[fixed][both.col]), both.data)
    whole = float(drawn.sum())
    return 2 * drawn / whole if whole > 0 else None

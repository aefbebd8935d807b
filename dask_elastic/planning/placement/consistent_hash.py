"""Consistent hashing: a ring with virtual nodes decides the bin of each group.

Goal
    The baseline that ignores load: about equal counts of groups, and few moves when a bin joins or leaves.
Heuristic
    Every bin has points on a ring in proportion to its capacity; a group belongs to the bin of the next point.
Not done
    Balance of loads and of state, which the paper criticises.

Notes
-----
State migration, sections 2 and 6, and Appendix A. The paper does not name the variant; by the fifth erratum it is a
ring with virtual nodes. The numbers of groups and bins are hashed, so renumbering changes the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_seed, is_whole


@dataclass(frozen=True)
class ConsistentHash:
    """Plan by a ring.

    Parameters
    ----------
    replicas : int
        Points of a bin of mean capacity on the ring.

    Raises
    ------
    PlanningError
        If `replicas` is below 1.

    Notes
    -----
    State migration, section 6. The seed chooses the hash functions: keep it for the life of a job.

    Examples
    --------
    >>> problem = PlacementProblem([1] * 1000, current=[-1] * 1000, bins=4)
    >>> counts = np.bincount(ConsistentHash().plan(problem).bin)
    >>> bool(counts.min() > 150), bool(counts.max() < 350)
    (True, True)
    """

    replicas: int = 100

    by_number = ("groups", "bins")

    def __post_init__(self) -> None:
        if not (is_whole(self.replicas) and self.replicas >= 1):
            raise PlanningError(f"replicas is {self.replicas!r}: give 1 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: the number of groups that are not on the bin that the ring gives."""
        return (float((bin != ring(problem, self.replicas, seed)).sum()),)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement that the ring gives, as far as the rules allow."""
        return problem.placement(approach(problem, ring(problem, self.replicas, seed)))


def ring(problem: PlacementProblem, replicas: int, seed: int) -> Ints:
    """Return the bin that a ring gives each group, among the bins that stay.

    Parameters
    ----------
    problem : PlacementProblem
        The groups and bins, known by their numbers.
    replicas : int
        Points of a bin of mean capacity.
    seed : int
        Seeds the hash function.

    Returns
    -------
    array of int
        The bin of each group.
    """
    seed = as_seed(seed)
    live = np.flatnonzero(problem.live)
    parts = problem.strength / problem.strength.mean() * replicas
    points = np.maximum(np.rint(parts[live]), 1).astype(np.int64)
    owner = np.repeat(live, points)
    copy = np.arange(len(owner)) - np.repeat(np.cumsum(points) - points, points)
    problem.pause()
    at = hashed(hashed(owner, 2 * seed), copy)
    problem.pause()
    order = np.argsort(at, kind="stable")
    problem.pause()
    found = np.searchsorted(at[order], hashed(np.arange(problem.groups), 2 * seed + 1))
    result: Ints = owner[order][found % len(owner)]
    return result


def hashed(number: NDArray[np.generic], salt: int | Ints) -> NDArray[np.uint64]:
    """Return 64 well mixed bits for each number.

    Notes
    -----
    The finaliser of splitmix64 (Steele, Lea and Flood, 2014), stable across machines and versions.

    Examples
    --------
    >>> hashed(np.arange(2), 0).tolist()
    [16294208416658607535, 7960286522194355700]
    """
    salted = np.asarray(salt).astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    x: NDArray[np.uint64] = salted + np.uint64(0x9E3779B97F4A7C15) * (number.astype(np.uint64) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return result

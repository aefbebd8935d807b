"""COLA: groups that talk to each other are put together by balanced graph partitioning.

Goal
    Little traffic between bins, at a balance that is good enough; a placement from scratch, as at submit.
Heuristic
    All groups are one part at first. The heaviest part is split in two, with little traffic cut, until the parts can be
    packed on the bins with sufficient balance, the heaviest first on the least loaded bin.
Not done
    Any saving of moves but the choice of which part goes to which of several bins that are alike.

Notes
-----
ALBIC, sections 2.1 and 5.4, tells COLA so; its own listing is not printed there. It suits the placement at submit, not
the running job: where a budget leaves no part of it that is better than staying, all stays. Partitions are METIS'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymetis
import scipy.sparse as sp

from dask_elastic.planning.check import approach, settle
from dask_elastic.planning.correlation import match
from dask_elastic.planning.problem import Draft, Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.quality import better, collocation, load_distance
from dask_elastic.vocab.errors import PlanningError

_UNITS = 10_000
# Parts may be a third above their share, so that three pairs are halved without cutting one; packing evens out.
_UNEVEN = 350


@dataclass(frozen=True)
class Cola:
    """Plan by partitioning the graph of traffic.

    Parameters
    ----------
    max_distance : float
        The load distance, as a share of the mean load, that is balance enough.

    Raises
    ------
    PlanningError
        If it is negative.

    Notes
    -----
    ALBIC, section 2.1, after Khandekar et al. The seed is METIS'.

    Examples
    --------
    >>> problem = PlacementProblem([1, 1, 1, 1], [0, 0, 1, 1], 2, traffic=np.eye(4)[[2, 3, 0, 1]])
    >>> Cola().plan(problem).bin.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """

    max_distance: float = 0.2

    def __post_init__(self) -> None:
        if not self.max_distance >= 0:
            raise PlanningError(f"max_distance is {self.max_distance!r}: give 0 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: what is left to drain, load distance beyond what is enough, traffic."""
        beyond = load_distance(problem, bin) - self.max_distance * problem.mean
        return problem.to_drain(bin), max(beyond, 0.0), 1 - collocation(problem, bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement found from scratch, as far as the rules let, if it is better than staying."""
        return problem.placement(settle(problem, lambda part: self._once(part, seed)))

    def _once(self, problem: PlacementProblem, seed: int) -> Ints:
        draft = Draft(problem)
        best, key = draft.bin.copy(), self.objective(problem, draft.bin)
        draft.drain()
        for bin in (draft.bin, approach(problem, self._from_scratch(problem, seed))):
            found = self.objective(problem, bin)
            if better(found, key):
                best, key = bin, found
        return best

    def _from_scratch(self, problem: PlacementProblem, seed: int) -> Ints:
        label = np.zeros(problem.groups, dtype=np.int64)
        bins, count, checked = int(problem.live.sum()), 1, 0
        while True:
            size = np.bincount(label, problem.weight, minlength=count).astype(np.float64)
            several = np.bincount(label, minlength=count) > 1
            last = not several.any()
            # Packing is tried again when there is a tenth more of the parts.
            if last or (count >= bins and count >= 1.1 * checked):
                bin, checked = _pack(problem, label, size), count
                if last or load_distance(problem, bin) <= self.max_distance * problem.mean:
                    return bin
            members = np.flatnonzero(label == int(np.argmax(np.where(several, size, -1.0))))
            label[members[partition(problem.traffic, members, problem.weight, 2, seed) == 1]] = count
            count += 1


def _pack(problem: PlacementProblem, label: Ints, size: Floats) -> Ints:
    """Put parts on bins, the heaviest first, and bins that are alike where they hold most state already."""
    shares = np.where(problem.live, 0.0, np.inf)
    place = np.zeros(len(size), dtype=np.int64)
    for part in np.argsort(-size, kind="stable").tolist():
        place[part] = int(np.argmin(shares + size[part] / problem.strength))
        shares[place[part]] += size[part] / problem.strength[place[part]]
    bin = place[label]
    if problem.capacity is not None:
        return bin
    return match(problem, np.searchsorted(np.unique(bin), bin), problem.current)


def partition(traffic: Any, members: Ints, weight: Floats, parts: int, seed: int) -> Ints:
    """Cut some groups into parts of like weight with little traffic between them, each with one group at least.

    Parameters
    ----------
    traffic : sparse matrix or None
        Bytes per second from group to group, of all groups.
    members : array of int
        The groups to cut.
    weight : array of float
        The weight of each group, of all groups.
    parts : int
        How many parts to make; fewer where there are fewer groups.
    seed : int
        The partitioner's seed.

    Returns
    -------
    array of int
        The part of each member.

    Examples
    --------
    >>> traffic = sp.csr_matrix(np.eye(4)[[1, 0, 3, 2]])
    >>> found = partition(traffic, np.arange(4), np.ones(4), 2, seed=0)
    >>> bool(found[0] == found[1]), bool(found[2] == found[3]), bool(found[0] != found[2])
    (True, True, True)
    """
    count = len(members)
    parts = min(parts, count)
    if parts == count:
        return np.arange(count)
    if traffic is None:
        graph = sp.csr_matrix((count, count))
    else:
        inside = traffic[members][:, members]
        graph = (inside + inside.T).tocsr()
    graph.setdiag(0)
    graph.eliminate_zeros()
    options = pymetis.Options()
    options.seed = int(seed) % (2**31 - 1)
    options.ufactor = _UNEVEN
    _, found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(graph.indptr.tolist(), graph.indices.tolist()),
        vweights=_units(weight[members]).tolist(),
        eweights=_units(graph.data).tolist(),
        options=options,
    )
    return _filled(np.asarray(found, dtype=np.int64), weight[members], parts)


def _units(values: Floats) -> Ints:
    """Return weights as whole numbers of 1 or more, which is what the partitioner takes."""
    most = float(values.max(initial=0.0))
    scaled = values / most * _UNITS if most > 0 else values
    return np.maximum(np.rint(scaled), 1).astype(np.int64)


def _filled(label: Ints, weight: Floats, parts: int) -> Ints:
    """Give each part that came out empty the lightest group of the part with most groups."""
    for part in np.flatnonzero(np.bincount(label, minlength=parts) == 0).tolist():
        crowded = int(np.argmax(np.bincount(label, minlength=parts)))
        label[int(np.argmin(np.where(label == crowded, weight, np.inf)))] = part
    return label

"""Horizontal scaling: a policy for the number of nodes that keeps utilisation near a target, with hysteresis.

Goal
    Nodes are added before load degrades performance and removed when not needed, and neither is undone soon after.
Heuristic
    Above an upper bound, nodes are added until the target is met; below a lower bound for several periods in a row,
    nodes are removed as far as the target allows. Nodes marked for removal are kept before new ones are requested.
Not done
    Forecasts, prices, and latency targets: `dask_elastic.model` turns those into cores.

Notes
-----
ALBIC, sections 4.1 and 4.2, leaves the policy open. It requires a policy to decide by the potential plan, not by the
current loads; to let collocation save nodes; and to remove no node whose load the others could not balance. No erratum
affects it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Mask, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import load_index
from dask_elastic.vocab.errors import PlanningError

TRIED = 8
"""Up to so many nodes, each number of nodes to remove is tried; each try balances the whole cluster."""


@dataclass(frozen=True)
class Scaling:
    """The changes of nodes that a policy requests; nodes are the bins of its problem.

    Parameters
    ----------
    add : int
        Number of new nodes.
    remove : tuple of int
        The bins to drain and remove.
    keep : tuple of int
        The bins that are marked for removal and shall stay instead.
    reason : str
        The reason, for users.
    quiet : int
        Number of consecutive periods in which utilisation has been below the lower bound.
    """

    add: int = 0
    remove: tuple[int, ...] = ()
    keep: tuple[int, ...] = ()
    reason: str = field(default="", compare=False)
    quiet: int = 0

    def __post_init__(self) -> None:
        if self.add < 0 or self.quiet < 0:
            raise PlanningError(f"add is {self.add!r}, quiet {self.quiet!r}: give 0 or more.")
        if len({*self.remove, *self.keep}) < len(self.remove) + len(self.keep):
            raise PlanningError(f"remove is {self.remove}, keep {self.keep}: name each bin once.")

    @property
    def changes(self) -> bool:
        """Whether any node is added, removed or kept."""
        return bool(self.add or self.remove or self.keep)


class ScalingPolicy(Protocol):
    """Decides on the number of nodes."""

    def decide(self, problem: PlacementProblem, plan: Placement, marked: Mask, last: Scaling) -> Scaling:
        """Return which nodes to add, remove and keep.

        Parameters
        ----------
        problem : PlacementProblem
            The groups on the present nodes; nodes marked for removal are draining.
        plan : Placement
            The potential plan, for unchanged nodes.
        marked : array of bool, bins
            The draining bins that the policy may keep.
        last : Scaling
            The policy's decision in the previous period.

        Returns
        -------
        Scaling
            The decision.
        """
        ...


@dataclass(frozen=True)
class TargetUtilisation:
    """A policy that keeps the load near a fraction of the capacity.

    Parameters
    ----------
    target : float
        Load as a fraction of capacity, on the most used resource, to reach by scaling.
    lower, upper : float
        The fractions between which nothing is done. The larger the gap, the less often nodes are added and removed.
    patience : int
        Number of consecutive periods with load below `lower` before nodes are removed, at least 1.
    least : int
        Minimum number of nodes, at least 1.
    most : int, optional
        Maximum number of nodes.
    communication : float
        The load of sending all traffic between nodes, relative to the load without communication; see
        `dask_elastic.planning.placement.quality.load_index`. With 0, collocation saves nothing.

    Raises
    ------
    PlanningError
        If ``0 < lower < target < upper <= 1`` does not hold, or another number is out of range.

    Notes
    -----
    A node above its capacity that balancing without a budget would not relieve causes one more node to be added,
    whatever the utilisation, unless a single group fills it. A node is removed only if the others can then take all
    load without any exceeding `upper`, or the present peak if that is higher. Both are evaluated with Flux, starting
    from the potential plan.

    Examples
    --------
    >>> problem = PlacementProblem([30, 30, 30], current=[0, 0, 1], bins=2, capacity=[50, 50])
    >>> nothing = np.zeros(2, dtype=bool)
    >>> policy = TargetUtilisation()
    >>> policy.decide(problem, problem.placement(problem.current), nothing, Scaling())
    Scaling(add=1, remove=(), keep=(), reason='load is 0.90 of capacity, above 0.85', quiet=0)
    """

    target: float = 0.7
    lower: float = 0.5
    upper: float = 0.85
    patience: int = 3
    least: int = 1
    most: int | None = None
    communication: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.lower < self.target < self.upper <= 1:
            raise PlanningError(
                f"lower, target and upper are {self.lower!r}, {self.target!r} and {self.upper!r}: "
                "give three numbers in ascending order, above 0 and at most 1."
            )
        if self.patience < 1 or self.least < 1:
            raise PlanningError(f"patience is {self.patience!r}, least {self.least!r}: give 1 or more.")
        if self.most is not None and self.most < self.least:
            raise PlanningError(f"most is {self.most!r}: give {self.least} or more, which is least, or None.")
        if not (self.communication >= 0 and math.isfinite(self.communication)):
            raise PlanningError(f"communication is {self.communication!r}: give a finite number of 0 or more.")

    def decide(self, problem: PlacementProblem, plan: Placement, marked: Mask, last: Scaling) -> Scaling:
        """Return how many nodes to add, and which to remove or to keep; see `ScalingPolicy.decide`.

        Parameters
        ----------
        problem : PlacementProblem
            The groups on the present nodes, with capacities.
        plan : Placement
            The potential plan.
        marked : array of bool, bins
            The draining bins that the policy may keep.
        last : Scaling
            The policy's decision in the previous period.

        Returns
        -------
        Scaling
            The decision.

        Raises
        ------
        PlanningError
            If the problem has no capacities, without which utilisation is undefined.
        """
        if problem.capacity is None:
            raise PlanningError("capacity is None: give the capacity of each bin, in the unit of load.")
        saved = load_index(problem, plan.bin, self.communication) if self.communication else 1.0
        load = problem.loads.sum(axis=0) * saved
        used = _used(load, problem.capacities[problem.live])
        if used > self.upper * (1 + SLACK):
            return self._more(problem, load, marked, f"load is {used:.2f} of capacity, above {self.upper:g}")
        if _hot(problem, plan.bin, saved):
            reason = f"load is {used:.2f} of capacity, but balancing leaves a node above its own capacity"
            return self._more(problem, load, marked, reason, least=1)
        if used >= self.lower * (1 - SLACK):
            return Scaling(reason=f"load is {used:.2f} of capacity")
        quiet = min(last.quiet + 1, self.patience)
        reason = f"load is {used:.2f} of capacity, below {self.lower:g}"
        leaving = self._leaving(problem, plan.bin, load, saved) if quiet >= self.patience else ()
        return Scaling(remove=leaving, reason=reason, quiet=0 if leaving else quiet)

    def _more(self, problem: PlacementProblem, load: Floats, marked: Mask, reason: str, least: int = 0) -> Scaling:
        """Keep nodes marked for removal, those with most state first, and add new ones if these are too few."""
        live = int(problem.live.sum())
        room = math.inf if self.most is None else max(self.most - live, 0)
        capacity = problem.capacities[problem.live].sum(axis=0)
        state = np.bincount(problem.current[problem.placed], problem.state_bytes[problem.placed], problem.bins)
        waiting = np.flatnonzero(marked)
        keep: list[int] = []
        for bin in waiting[np.argsort(-state[waiting], kind="stable")].tolist():
            if len(keep) < room and (len(keep) < least or (load > self.target * capacity * (1 + SLACK)).any()):
                keep.append(bin)
                capacity = capacity + problem.capacities[bin]
        short = (load / self.target - capacity) / problem.capacities.mean(axis=0)
        wanted = max(math.ceil(float(short.max()) - SLACK), least - len(keep), 0)
        add = int(min(wanted, room - len(keep)))
        if not keep and not add:
            reason += f", but the number of nodes is limited to {self.most}"
        return Scaling(add=add, keep=tuple(sorted(keep)), reason=reason)

    def _leaving(self, problem: PlacementProblem, bin: Ints, load: Floats, saved: float) -> tuple[int, ...]:
        """Return the nodes to remove: those with least state, as many as target and balance allow."""
        live = np.flatnonzero(problem.live)
        state = np.bincount(bin, problem.state_bytes, problem.bins)[live]
        order = live[np.lexsort((-live, problem.shares(bin)[live], state))]
        highest = max(self.upper, _peak(problem, _balanced(problem, bin)) * saved) * (1 + SLACK)
        enough = (
            count
            for count in range(len(order) - self.least, 0, -1)
            if _used(load, problem.capacities[order[count:]]) <= self.target * (1 + SLACK)
        )
        for count in _tried(next(enough, 0)):
            leaving = order[:count]
            draining = problem.draining.copy()
            draining[leaving] = True
            fewer = replace(problem, draining=draining)
            balanced = _balanced(fewer, bin)
            if fewer.to_drain(balanced) == 0 and _peak(fewer, balanced) * saved <= highest:
                return tuple(sorted(leaving.tolist()))
        return ()


def _tried(most: int) -> list[int]:
    """Return the numbers of nodes whose removal is tried, largest first: all of a few, of many in growing steps."""
    if most <= TRIED:
        return [*range(most, 0, -1)]
    steps = (4**step for step in range(most.bit_length()))
    return [most, *(most - step for step in steps if step < most)]


def _used(load: Floats, capacities: Floats) -> float:
    """Return the load of the most used resource, as a fraction of its capacity."""
    return float((load / capacities.sum(axis=0)).max())


def _balanced(problem: PlacementProblem, bin: Ints) -> Ints:
    """Return the placement that balancing without a budget reaches from these bins."""
    return Flux().plan(replace(problem, current=bin, max_moves=None, max_cost=None)).bin


def _peak(problem: PlacementProblem, bin: Ints) -> float:
    """Return the greatest utilisation of any resource of any live node."""
    return float((problem.totals(bin) / problem.capacities)[problem.live].max())


def _hot(problem: PlacementProblem, bin: Ints, saved: float) -> bool:
    """Return whether a node with several groups stays above its capacity after balancing."""
    if saved <= 1 and not problem.draining.any() and (problem.totals(bin) <= problem.capacities).all():
        # Balancing takes no node above its capacity.
        return False
    balanced = _balanced(problem, bin)
    shares = (problem.totals(balanced) / problem.capacities).max(axis=1) * saved
    loaded = problem.loads.any(axis=1)
    several = np.bincount(balanced[loaded], minlength=problem.bins) > 1
    return bool((problem.live & several & (shares > 1 + SLACK)).any())

"""The placement problem: groups with loads on bins with capacities, and the budgets of a plan.

Goal
    One small value of arrays that every planner reads and that the validator checks plans against.
Heuristic
    None: a `Draft` counts what a plan under construction has spent and which bins are full.
Not done
    Loads that depend on the bin; a planner that collocates groups reads `traffic` instead.

Notes
-----
ALBIC, sections 3 and 4.3.1. By the first erratum the mean is exact and normalised by capacity; the printed one is
rounded up. The balanced resource is the bottleneck: the resource with the highest overall use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning import checked_arrays as checked
from dask_elastic.planning.checked_arrays import SLACK, Floats, Ints, Mask
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError

__all__ = ["SLACK", "Floats", "Ints", "Mask", "Placement", "PlacementProblem"]


@dataclass(frozen=True, init=False, eq=False)
class PlacementProblem:
    """Groups with loads and bins, and the budgets of a new placement.

    Parameters
    ----------
    load : array of float, groups or groups × resources
        The load of each group. Of several resources the bottleneck is balanced, the others are kept within capacity.
    current : array of int
        The bin of each group, −1 for a new group. Placing a new group is no move and costs nothing.
    bins : int
        The number of bins.
    state_bytes : array of float, optional
        The cost of moving each group; 0 if left out.
    capacity : array of float, bins or bins × resources, optional
        The capacity of each bin, in the unit of the loads; loads of bins are compared as shares of it. No move takes a
        bin above its capacity, or further above it. Where the total load exceeds the total capacity of the bins that
        stay, capacities do not limit. Left out, bins are equal and without limit.
    draining : array of bool or of bins' numbers, optional
        The bins to be emptied. No group moves to them.
    traffic : sparse matrix, groups × groups, optional
        Bytes per second from group to group.
    operator : array of int, optional
        The operator of each group.
    history : array of float, windows × groups, optional
        The loads of earlier windows, oldest first.
    max_moves : int, optional
        The most groups that may change their bin.
    max_cost : float, optional
        The most state that may change its bin.
    size : array of int, optional
        The number of moves that each group counts for; 1 if left out. Groups that move as one count for their number.
    pinned : array of bool, optional
        The groups that stay where they are.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Raises
    ------
    PlanningError
        If shapes disagree, a number is negative or not finite, a bin is out of range, or all bins are draining. An
        infinite budget is no budget.

    Examples
    --------
    >>> problem = PlacementProblem([4, 4, 2, 2], current=[0, 0, 0, 1], bins=2, max_moves=1)
    >>> problem.shares(problem.current).tolist(), problem.mean
    ([10.0, 2.0], 6.0)
    >>> bin = problem.places([0, 1, 0, 1])
    >>> problem.totals(bin).tolist(), problem.moved(bin).tolist()
    ([[6.0], [6.0]], [False, True, False, False])
    >>> problem.to_drain(bin), problem.excess(bin), problem.placement(bin).moves
    (0.0, 0.0, 1)
    """

    load: Floats
    current: Ints
    bins: int
    state_bytes: Floats
    capacity: Floats | None
    draining: Mask
    traffic: Any
    operator: Ints | None
    history: Floats | None
    max_moves: int | None
    max_cost: float | None
    size: Ints
    pinned: Mask
    pause: Callable[[], None]

    def __init__(
        self,
        load: ArrayLike,
        current: ArrayLike,
        bins: int,
        state_bytes: ArrayLike | None = None,
        capacity: ArrayLike | None = None,
        draining: ArrayLike | None = None,
        traffic: Any = None,
        operator: ArrayLike | None = None,
        history: ArrayLike | None = None,
        max_moves: int | None = None,
        max_cost: float | None = None,
        size: ArrayLike | None = None,
        pinned: ArrayLike | None = None,
        pause: Callable[[], None] = no_pause,
    ):
        loads = checked.numbers("load", load)
        if loads.ndim not in (1, 2) or (loads.ndim == 2 and loads.shape[1] == 0):
            raise PlanningError(f"load has shape {loads.shape}: give groups, or groups × resources.")
        groups, resources = len(loads), 1 if loads.ndim == 1 else loads.shape[1]
        count = checked.number_of_bins(bins)
        no_state = np.zeros(groups)
        given = {
            "load": loads,
            "current": checked.places("current", current, groups, count),
            "bins": count,
            "state_bytes": no_state if state_bytes is None else checked.numbers("state_bytes", state_bytes, (groups,)),
            "capacity": None if capacity is None else checked.capacities(capacity, count, resources),
            "draining": checked.mask("draining", draining, count),
            "traffic": None if traffic is None else checked.matrix("traffic", traffic, groups, pause),
            "operator": None if operator is None else checked.integers("operator", operator, groups),
            "history": None if history is None else checked.windows("history", history, groups),
            "max_moves": checked.budget("max_moves", max_moves, whole=True),
            "max_cost": checked.budget("max_cost", max_cost, whole=False),
            "size": np.ones(groups, dtype=np.int64) if size is None else checked.integers("size", size, groups),
            "pinned": checked.mask("pinned", pinned, groups),
            "pause": pause,
        }
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)
        if self.draining.all():
            raise PlanningError(f"all {bins} bins are draining: leave one at least for the groups to go to.")
        if (self.size < 0).any():
            raise PlanningError(f"size is {int(self.size.min())} for a group: give 0 or more.")

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.load)

    @cached_property
    def live(self) -> Mask:
        """The bins that stay."""
        return ~self.draining

    @cached_property
    def placed(self) -> Mask:
        """The groups that have a bin."""
        return self.current >= 0

    @cached_property
    def loads(self) -> Floats:
        """The loads as groups × resources."""
        return self.load[:, None] if self.load.ndim == 1 else self.load

    @cached_property
    def capacities(self) -> Floats:
        """The capacities as bins × resources; ones where none were given."""
        return np.ones((self.bins, self.loads.shape[1])) if self.capacity is None else self.capacity

    @cached_property
    def bottleneck(self) -> int:
        """The resource with the highest total load, as a share of the capacity of the bins that stay."""
        return int(np.argmax(self.loads.sum(axis=0) / self.capacities[self.live].sum(axis=0)))

    @cached_property
    def weight(self) -> Floats:
        """The load of each group on the bottleneck."""
        return np.ascontiguousarray(self.loads[:, self.bottleneck])

    @cached_property
    def strength(self) -> Floats:
        """The capacity of each bin for the bottleneck."""
        return np.ascontiguousarray(self.capacities[:, self.bottleneck])

    @cached_property
    def mean(self) -> float:
        """The total load, also that on draining bins, as a share of the capacity of the bins that stay."""
        return float(self.weight.sum() / self.strength[self.live].sum())

    @cached_property
    def burden(self) -> Floats:
        """The weight of each group on a draining bin: its load plus a little, since groups without load leave too."""
        floor = float(self.weight.mean()) / 1000 if self.weight.any() else 1.0
        return self.weight + floor

    @cached_property
    def limit(self) -> Floats:
        """The load that no move may exceed, bins × resources; infinite where there is no limit."""
        if self.capacity is None:
            return np.full((self.bins, self.loads.shape[1]), np.inf)
        limit = np.maximum(self.capacities, self.totals(self.current)) * (1 + SLACK)
        short = self.loads.sum(axis=0) > self.capacities[self.live].sum(axis=0) * (1 + SLACK)
        limit[:, short] = np.inf
        return limit

    def places(self, bin: ArrayLike) -> Ints:
        """Return bins as an array, one for each group and −1 for none.

        Parameters
        ----------
        bin : array_like of int
            The bin of each group, −1 for none.

        Returns
        -------
        array of int
            The same bins.

        Raises
        ------
        PlanningError
            If there is not one integer for each group, or one is no bin.
        """
        return checked.places("bin", bin, self.groups, self.bins)

    def totals(self, bin: Ints) -> Floats:
        """Return the load of each bin, bins × resources; groups without a bin do not count.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.

        Returns
        -------
        array of float, shape (bins, resources)
            The sums of the loads.
        """
        there = bin >= 0
        columns = [
            np.bincount(bin[there], self.loads[there, resource], minlength=self.bins)
            for resource in range(self.loads.shape[1])
        ]
        return np.stack(columns, axis=1).astype(np.float64)

    def shares(self, bin: Ints) -> Floats:
        """Return the bottleneck load of each bin as a share of its capacity.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.

        Returns
        -------
        array of float, shape (bins,)
            1 is a bin that is full.
        """
        there = bin >= 0
        sums = np.bincount(bin[there], self.weight[there], minlength=self.bins)
        result: Floats = sums / self.strength
        return result

    def moved(self, bin: Ints) -> Mask:
        """Return the groups that had a bin and get another one.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.

        Returns
        -------
        array of bool, shape (groups,)
            True for each group that changes its bin; false for groups without a current bin.
        """
        result: Mask = self.placed & (bin != self.current)
        return result

    def to_drain(self, bin: Ints) -> float:
        """Return the load on draining bins, plus a thousandth of the mean load for each group there.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.

        Returns
        -------
        float
            0 if the draining bins are empty.
        """
        return float(self.burden[(bin >= 0) & self.draining[bin]].sum())

    def excess(self, bin: Ints) -> float:
        """Return the load above the limits of bins, as shares of capacity; only new groups can cause it.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.

        Returns
        -------
        float
            The sum over all bins and resources; 0 if every bin is within its limit.
        """
        over = np.maximum(self.totals(bin) - self.limit, 0.0) / self.capacities
        return float(over.sum())

    def placement(self, bin: Ints, proven: bool = False) -> Placement:
        """Return these bins as a placement, with its moves and cost.

        Parameters
        ----------
        bin : array of int
            The bin of each group, −1 for none.
        proven : bool
            Whether no other answer is better for the planner's objective.

        Returns
        -------
        Placement
            The bins, with the number of moves and the bytes of state moved.
        """
        moved = self.moved(bin)
        return Placement(bin, int(self.size[moved].sum()), float(self.state_bytes[moved].sum()), proven)


@dataclass(frozen=True, eq=False)
class Placement:
    """The answer of a placement planner.

    Parameters
    ----------
    bin : array of int
        The bin of each group.
    moves : int
        The number of groups that change their bin.
    cost : float
        The state that changes its bin.
    proven : bool
        Whether the planner has proven that no answer has a lower objective.

    Examples
    --------
    >>> Placement([0, 1, 0, 1], moves=1, cost=0.0).bin.tolist()
    [0, 1, 0, 1]
    """

    bin: Ints
    moves: int
    cost: float
    proven: bool = False

    def __post_init__(self) -> None:
        places = np.array(self.bin)
        if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
            raise PlanningError(f"bin has shape {places.shape} and type {places.dtype}: give one integer a group.")
        if isinstance(self.moves, bool) or not isinstance(self.moves, int | np.integer) or self.moves < 0:
            raise PlanningError(f"moves is {self.moves!r}: give a whole number of 0 or more.")
        if not (math.isfinite(self.cost) and self.cost >= 0):
            raise PlanningError(f"cost is {self.cost!r}: give a finite number of 0 or more.")
        places = places.astype(np.int64)
        places.flags.writeable = False
        object.__setattr__(self, "bin", places)

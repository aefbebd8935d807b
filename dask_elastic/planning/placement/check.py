"""The rules of placements, checked without knowing how a planner works.

Goal
    A plan that breaks a budget or a capacity, or that fills a draining bin, is refused; where a planner wants more than
    the rules allow, `approach` carries out as much as they do.
Heuristic
    None for the rules. `approach` moves groups in the order that the planner gives.
Not done
    The quality of a plan; `dask_elastic.planning.placement.quality` measures that.

Notes
-----
ALBIC, section 4.3.1, constraints (1) and (2). By the second erratum its Lemma 1, that no group moves to a draining
node, does not hold at the optimum of the program as printed; so the rules forbid such moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import SLACK, Ints, Placement, PlacementProblem
from dask_elastic.vocab.errors import InvalidPlan


def validate(problem: PlacementProblem, placement: Placement) -> None:
    """Raise if a placement breaks a rule of its problem.

    Parameters
    ----------
    problem : PlacementProblem
        The rules.
    placement : Placement
        A planner's answer.

    Raises
    ------
    InvalidPlan
        Names the group or bin and the rule. The rules: every group has a bin; none moves to a draining bin; pinned
        groups stay; `moves` and `cost` agree with the bins and are within budget; no bin that receives a group ends
        above its capacity of a resource that the group needs, unless it was as far above before.

    Examples
    --------
    >>> problem = PlacementProblem([4, 4], current=[0, 0], bins=2, draining=[1])
    >>> validate(problem, Placement([0, 1], moves=1, cost=0))
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.InvalidPlan: group 1 goes from bin 0 to bin 1, which is draining.
    """
    problem.pause()
    _check_bins(problem, placement.bin)
    _check_budget(problem, placement)
    _check_capacity(problem, placement.bin)
    problem.pause()


def approach(problem: PlacementProblem, wanted: Ints, order: Sequence[int] | Ints | None = None) -> Ints:
    """Move groups towards a placement as far as budgets and capacities allow.

    Parameters
    ----------
    problem : PlacementProblem
        The groups, their bins, and the budgets.
    wanted : array of int
        The bin that each group should get; the rules may forbid it.
    order : sequence of int, optional
        Groups by falling priority; groups on draining bins come before all others. The heaviest first if left out.

    Returns
    -------
    array of int
        The bin of each group; some groups may stay where they are.
    """
    if _is_valid(problem, wanted):
        return wanted
    draft = Draft(problem, wanted)
    ranked = np.argsort(-problem.weight, kind="stable") if order is None else np.asarray(order, dtype=np.int64)
    ranked = ranked[np.argsort(~problem.draining[draft.bin[ranked]], kind="stable")]
    # A full bin may have room after other groups have left it.
    waiting = ranked[wanted[ranked] != draft.bin[ranked]]
    while len(waiting):
        for group in draft.movable(waiting, wanted):
            draft.move(group, int(wanted[group]))
        refused = waiting[wanted[waiting] != draft.bin[waiting]]
        if len(refused) == len(waiting):
            break
        waiting = refused
    return draft.bin


def settle(problem: PlacementProblem, once: Callable[[PlacementProblem], Ints]) -> Ints:
    """Plan; without a budget, plan again from the answer until nothing changes.

    Parameters
    ----------
    problem : PlacementProblem
        The problem.
    once : callable
        Returns the bins for a problem; wherever it moves groups, its objective must fall.

    Returns
    -------
    array of int
        The bin of each group.

    Notes
    -----
    Groups that have left a bin make room for groups that were refused before. With a budget the next period does this.
    """
    bin = once(problem)
    while problem.max_moves is None and problem.max_cost is None:
        again = once(replace(problem, current=bin))
        if (again == bin).all() or not _is_valid(problem, again):
            break
        bin = again
    return bin


def _is_valid(problem: PlacementProblem, bin: Ints) -> bool:
    try:
        validate(problem, problem.placement(bin))
    except InvalidPlan:
        return False
    return True


def _check_bins(problem: PlacementProblem, bin: Ints) -> None:
    if bin.shape != (problem.groups,):
        raise InvalidPlan(f"bin has shape {bin.shape}: the problem has {problem.groups} groups.")
    wrong = np.flatnonzero((bin < 0) | (bin >= problem.bins))
    if wrong.size:
        group = int(wrong[0])
        raise InvalidPlan(f"group {group} is on bin {int(bin[group])}: there are bins 0 to {problem.bins - 1}.")
    changed = bin != problem.current
    for group in np.flatnonzero(changed & problem.draining[bin])[:1].tolist():
        source, target = int(problem.current[group]), int(bin[group])
        raise InvalidPlan(f"group {group} goes from bin {source} to bin {target}, which is draining.")
    for group in np.flatnonzero(problem.moved(bin) & problem.pinned)[:1].tolist():
        raise InvalidPlan(f"group {group} is pinned to bin {int(problem.current[group])}, not {int(bin[group])}.")


def _check_budget(problem: PlacementProblem, placement: Placement) -> None:
    moved = problem.moved(placement.bin)
    moves, cost = int(problem.size[moved].sum()), float(problem.state_bytes[moved].sum())
    if placement.moves != moves:
        raise InvalidPlan(f"moves is {placement.moves!r}: {moves} groups change their bin.")
    if not abs(placement.cost - cost) <= SLACK * max(1.0, cost):
        raise InvalidPlan(f"cost is {placement.cost!r}: {cost!r} of state changes its bin.")
    if problem.max_moves is not None and moves > problem.max_moves:
        raise InvalidPlan(f"{moves} groups change their bin: max_moves is {problem.max_moves}.")
    if problem.max_cost is not None and cost > problem.max_cost * (1 + 2 * SLACK):
        raise InvalidPlan(f"{cost!r} of state changes its bin: max_cost is {problem.max_cost!r}.")


def _check_capacity(problem: PlacementProblem, bin: Ints) -> None:
    # A group that needs nothing of a resource may go to a bin that has none left.
    receives = np.zeros((problem.bins, problem.loads.shape[1]), dtype=np.bool_)
    moved = problem.moved(bin)
    np.logical_or.at(receives, bin[moved], problem.loads[moved] > 0)
    totals = problem.totals(bin)
    over = np.argwhere((totals > problem.limit * (1 + SLACK)) & receives)
    if over.size:
        at, resource = (int(x) for x in over[0])
        load, capacity = float(totals[at, resource]), float(problem.capacities[at, resource])
        raise InvalidPlan(f"bin {at} gets groups and ends with {load!r} of resource {resource}: it bears {capacity!r}.")

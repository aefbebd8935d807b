"""The loop of horizontal scaling, balancing and collocation: which nodes to release and add, which groups to move.

Goal
    In each period, empty nodes that are marked for removal are released; a potential plan determines scaling, and
    scaling then determines the final plan.
Heuristic
    ALBIC's Algorithm 1: make a potential plan for the present nodes, decide on the nodes by that plan, and plan again
    if the decision changes them.
Not done
    Waiting for, starting and stopping nodes: the caller does this between `begin` and `finish`.

Notes
-----
ALBIC, section 4.1, Algorithm 1. Draining a node may take many periods, since each has a budget. In addition to the
paper, a node marked for removal may be kept, which costs less than a new one. No erratum affects the loop; those that
affect its plans are handled by the planners.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.control.scaling import Scaling, ScalingPolicy
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.problem import Mask, Placement, PlacementProblem
from dask_elastic.planning.planner import Planner
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True, eq=False)
class Proposal:
    """The result of the first half of a period: changes of the nodes.

    Parameters
    ----------
    release : tuple
        The nodes that are marked for removal and empty; they can be stopped now.
    add : int
        Number of new nodes.
    remove : tuple
        The nodes that are marked for removal in this period.
    keep : tuple
        The nodes that are no longer marked: the policy keeps them, or no others would be left.
    reason : str
        The policy's reason.
    problem : PlacementProblem
        The problem with all marked nodes draining, in the order of `nodes`.
    nodes : tuple
        The nodes, which are the problem's bins.
    potential : Placement
        The potential plan, made before `remove` and `keep`.
    """

    release: tuple[Hashable, ...]
    add: int
    remove: tuple[Hashable, ...]
    keep: tuple[Hashable, ...]
    reason: str
    problem: PlacementProblem
    nodes: tuple[Hashable, ...]
    potential: Placement

    @property
    def scales(self) -> bool:
        """Whether any node is added, removed or kept."""
        return bool(self.add or self.remove or self.keep)


@dataclass(frozen=True)
class GroupMove:
    """The move of one group to another node, or its first placement.

    Parameters
    ----------
    group : int
        The group.
    source : hashable or None
        Its current node; None for a new group.
    target : hashable
        Its new node.
    """

    group: int
    source: Hashable | None
    target: Hashable


@dataclass(frozen=True, eq=False)
class Reconfiguration:
    """The result of the second half of a period: the plan to carry out.

    Parameters
    ----------
    problem : PlacementProblem
        The problem that the plan solves.
    nodes : tuple
        The nodes, which are the problem's bins.
    placement : Placement
        The plan.
    """

    problem: PlacementProblem
    nodes: tuple[Hashable, ...]
    placement: Placement

    @property
    def moves(self) -> tuple[GroupMove, ...]:
        """The moves of groups, in ascending order of groups."""
        current, bin = self.problem.current, self.placement.bin
        return tuple(
            GroupMove(group, self.nodes[current[group]] if current[group] >= 0 else None, self.nodes[bin[group]])
            for group in np.flatnonzero(bin != current).tolist()
        )


class Reconfigurer:
    """The loop; it remembers by name which nodes are marked for removal.

    Parameters
    ----------
    planner : Planner
        Places the groups.
    policy : ScalingPolicy
        Decides on the number of nodes.
    seed : int
        The planner's seed.

    Notes
    -----
    ALBIC, section 4.1, Algorithm 1: `begin` is its lines 1 to 5, `finish` lines 6 to 8.

    Examples
    --------
    >>> from dask_elastic.control.scaling import TargetUtilisation
    >>> from dask_elastic.planning.registry import planner
    >>> loop = Reconfigurer(planner("milp"), TargetUtilisation(patience=1))
    >>> problem = PlacementProblem([10, 10, 10], current=[0, 1, 2], bins=3, capacity=[50] * 3)
    >>> proposal = loop.begin(problem, ["a", "b", "c"])
    >>> proposal.remove, proposal.release
    (('b', 'c'), ())
    >>> [(move.group, move.source, move.target) for move in loop.finish(proposal).moves]
    [(1, 'b', 'a'), (2, 'c', 'a')]
    >>> problem = PlacementProblem([10, 10, 10], current=[0, 0, 0], bins=3, capacity=[50] * 3)
    >>> loop.begin(problem, ["a", "b", "c"]).release
    ('b', 'c')
    """

    def __init__(self, planner: Planner[PlacementProblem, Placement], policy: ScalingPolicy, seed: int = 0):
        self.planner = planner
        self._policy = policy
        self._seed = seed
        self._marked: frozenset[Hashable] = frozenset()
        self._last = Scaling()

    @property
    def marked(self) -> frozenset[Hashable]:
        """The nodes that are marked for removal and were present in the last call."""
        return self._marked

    def begin(self, problem: PlacementProblem, nodes: Sequence[Hashable]) -> Proposal:
        """Decide which nodes to release, add and mark for removal.

        Parameters
        ----------
        problem : PlacementProblem
            The measured groups; its bins are the nodes. Bins that are draining in it are drained, but neither released
            nor kept by this loop, since their removal was requested elsewhere.
        nodes : sequence of hashable
            The name of each node.

        Returns
        -------
        Proposal
            The changes of nodes to make before `finish` is called.

        Raises
        ------
        PlanningError
            If names and bins do not match, or the policy names bins that it must not.
        """
        names = _names(problem, nodes)
        before = self._marked & frozenset(names)
        problem, marked = self._with_marks(problem, names)
        held = np.zeros(problem.bins, dtype=np.bool_)
        held[problem.current[problem.placed]] = True
        empty = marked & ~held
        potential = self._plan(problem)
        scaling = self._policy.decide(problem, potential, marked & held, self._last)
        _check(scaling, problem, marked & held)
        self._last = scaling
        removed, kept = _select(names, scaling.remove), _select(names, scaling.keep)
        spared = before - self._marked - {*removed}
        self._marked = (self._marked | {*removed}) - {*kept}
        after = problem.draining.copy()
        after[[*scaling.remove]] = True
        after[[*scaling.keep]] = False
        return Proposal(
            release=_select(names, np.flatnonzero(empty).tolist()),
            add=scaling.add,
            remove=removed,
            keep=tuple(name for name in names if name in spared.union(kept)),
            reason=scaling.reason,
            problem=replace(problem, draining=after),
            nodes=names,
            potential=potential,
        )

    def finish(
        self,
        proposal: Proposal,
        problem: PlacementProblem | None = None,
        nodes: Sequence[Hashable] | None = None,
    ) -> Reconfiguration:
        """Return the plan to carry out: the potential plan, or a new one if the nodes change.

        Parameters
        ----------
        proposal : Proposal
            The result of `begin`.
        problem : PlacementProblem, optional
            The groups on the present nodes; omit it if no node was added or stopped since `begin`.
        nodes : sequence of hashable, optional
            The name of each node of the problem.

        Returns
        -------
        Reconfiguration
            The plan.

        Raises
        ------
        PlanningError
            If only one of `problem` and `nodes` is given, or names and bins do not match.
        """
        if (problem is None) != (nodes is None):
            raise PlanningError("problem and nodes belong together: give both, or neither.")
        if problem is None or nodes is None:
            planned = self._plan(proposal.problem) if proposal.scales else proposal.potential
            return Reconfiguration(proposal.problem, proposal.nodes, planned)
        names = _names(problem, nodes)
        problem, _ = self._with_marks(problem, names)
        return Reconfiguration(problem, names, self._plan(problem))

    def _with_marks(self, problem: PlacementProblem, names: tuple[Hashable, ...]) -> tuple[PlacementProblem, Mask]:
        """Return the problem with marked nodes draining, and which these are; absent nodes lose their mark."""
        self._marked &= frozenset(names)
        marked = np.array([name in self._marked for name in names], dtype=np.bool_)
        if (problem.draining | marked).all():
            # All unmarked nodes are draining for other reasons, so the marked ones have to stay.
            self._marked, marked = frozenset(), np.zeros_like(marked)
        return replace(problem, draining=problem.draining | marked), marked

    def _plan(self, problem: PlacementProblem) -> Placement:
        placement = self.planner.plan(problem, seed=self._seed)
        validate(problem, placement)
        return placement


def _names(problem: PlacementProblem, nodes: Sequence[Hashable]) -> tuple[Hashable, ...]:
    names = tuple(nodes)
    if len(names) != problem.bins or len(set(names)) != len(names):
        raise PlanningError(f"nodes are {names}: give {problem.bins} distinct names, one per bin.")
    return names


def _select(names: tuple[Hashable, ...], bins: Sequence[int]) -> tuple[Hashable, ...]:
    return tuple(names[bin] for bin in bins)


def _check(scaling: Scaling, problem: PlacementProblem, marked: Mask) -> None:
    """Raise if a policy names bins that it must not."""
    wrong = [bin for bin in scaling.remove if not 0 <= bin < problem.bins or problem.draining[bin]]
    if wrong:
        raise PlanningError(f"the policy removes bin {wrong[0]}, which does not exist or is already draining.")
    wrong = [bin for bin in scaling.keep if not 0 <= bin < problem.bins or not marked[bin]]
    if wrong:
        raise PlanningError(
            f"the policy keeps bin {wrong[0]}, which does not exist, is not marked, or is empty and released."
        )

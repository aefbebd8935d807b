"""The loop of horizontal scaling, balance and collocation: what to release, what to ask for, what to move.

Goal
    One period after the other, nodes that were to go are emptied and released, and a plan decides on scaling before
    scaling decides on the plan.
Heuristic
    ALBIC's Algorithm 1: a potential plan for the nodes that are there, a decision on the nodes by that plan, and where
    it changes anything a plan once more.
Not done
    Waiting, starting and ending nodes: whoever drives the loop does, between `begin` and `finish`.

Notes
-----
ALBIC, section 4.1, Algorithm 1. Emptying a node may take many periods, since each has its budget. A node that was to go
may be taken back, of which the paper does not speak; it costs less than a new one. No erratum bears on the loop; those
that do on its plans are the planners'.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.control.scaling import Scaling, ScalingPolicy
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Mask, Placement, PlacementProblem
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True, eq=False)
class Proposal:
    """The first half of a period: what shall become of the nodes.

    Parameters
    ----------
    release : tuple
        The nodes that were to go and are empty: they may be ended now.
    add : int
        How many new nodes are wanted.
    remove : tuple
        The nodes that are to go from now on.
    keep : tuple
        The nodes that were to go and stay after all: the policy wants them, or none would be left.
    reason : str
        What the policy says of it.
    problem : PlacementProblem
        The problem with all nodes draining that are to go, in the order of `nodes`.
    nodes : tuple
        The nodes, which are the problem's bins.
    potential : Placement
        The plan by which the policy decided, made before `remove` and `keep`.
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
        """Whether anything changes about the nodes."""
        return bool(self.add or self.remove or self.keep)


@dataclass(frozen=True)
class GroupMove:
    """One group gets another node, or its first.

    Parameters
    ----------
    group : int
        The group.
    source : hashable or None
        The node it is on; None if it has none yet.
    target : hashable
        The node it goes to.
    """

    group: int
    source: Hashable | None
    target: Hashable


@dataclass(frozen=True, eq=False)
class Reconfiguration:
    """The second half of a period: the plan to carry out.

    Parameters
    ----------
    problem : PlacementProblem
        What was planned.
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
        """The groups that change their node, in ascending order."""
        current, bin = self.problem.current, self.placement.bin
        return tuple(
            GroupMove(group, self.nodes[current[group]] if current[group] >= 0 else None, self.nodes[bin[group]])
            for group in np.flatnonzero(bin != current).tolist()
        )


class Reconfigurer:
    """The loop, period by period; it remembers which nodes are to go, by their names.

    Parameters
    ----------
    planner : PlacementPlanner
        Who places the groups.
    policy : ScalingPolicy
        Who decides on the number of nodes.
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

    def __init__(self, planner: PlacementPlanner, policy: ScalingPolicy, seed: int = 0):
        self._planner = planner
        self._policy = policy
        self._seed = seed
        self._marked: frozenset[Hashable] = frozenset()
        self._last = Scaling()

    @property
    def marked(self) -> frozenset[Hashable]:
        """The nodes that are to go and were still there when last looked at."""
        return self._marked

    def begin(self, problem: PlacementProblem, nodes: Sequence[Hashable]) -> Proposal:
        """Say which nodes may be ended, how many are wanted, and which are to go.

        Parameters
        ----------
        problem : PlacementProblem
            The groups as measured; its bins are the nodes. Bins that it has draining are emptied too, and are neither
            released nor taken back: they are somebody else's.
        nodes : sequence of hashable
            The name of each node.

        Returns
        -------
        Proposal
            What to do about the nodes before `finish` is called.

        Raises
        ------
        PlanningError
            If names and bins do not match, or the policy names bins that it may not.
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
        """Return the plan to carry out: the potential one, or another where the nodes change.

        Parameters
        ----------
        proposal : Proposal
            What `begin` said.
        problem : PlacementProblem, optional
            The groups on the nodes that are there now. Left out, none came or went since `begin`.
        nodes : sequence of hashable, optional
            The name of each node of the problem; those that came, and those that were there and have not been ended.

        Raises
        ------
        PlanningError
            If only one of the two is given, or names and bins do not match.
        """
        if (problem is None) != (nodes is None):
            raise PlanningError("a problem and the names of its nodes belong together: give both, or none.")
        if problem is None or nodes is None:
            planned = self._plan(proposal.problem) if proposal.scales else proposal.potential
            return Reconfiguration(proposal.problem, proposal.nodes, planned)
        names = _names(problem, nodes)
        problem, _ = self._with_marks(problem, names)
        return Reconfiguration(problem, names, self._plan(problem))

    def _with_marks(self, problem: PlacementProblem, names: tuple[Hashable, ...]) -> tuple[PlacementProblem, Mask]:
        """Return the problem with marked nodes draining, and which those are; nodes that are gone lose their mark."""
        self._marked &= frozenset(names)
        marked = np.array([name in self._marked for name in names], dtype=np.bool_)
        if (problem.draining | marked).all():
            # Somebody else drains all nodes that were to stay.
            self._marked, marked = frozenset(), np.zeros_like(marked)
        return replace(problem, draining=problem.draining | marked), marked

    def _plan(self, problem: PlacementProblem) -> Placement:
        placement = self._planner.plan(problem, seed=self._seed)
        validate(problem, placement)
        return placement


def _names(problem: PlacementProblem, nodes: Sequence[Hashable]) -> tuple[Hashable, ...]:
    names = tuple(nodes)
    if len(names) != problem.bins or len(set(names)) != len(names):
        raise PlanningError(f"nodes are {names}: give {problem.bins} different names, one for each bin.")
    return names


def _select(names: tuple[Hashable, ...], bins: Sequence[int]) -> tuple[Hashable, ...]:
    return tuple(names[bin] for bin in bins)


def _check(scaling: Scaling, problem: PlacementProblem, marked: Mask) -> None:
    """Raise if a policy names bins that it may not."""
    wrong = [bin for bin in scaling.remove if not 0 <= bin < problem.bins or problem.draining[bin]]
    if wrong:
        raise PlanningError(f"the policy removes bin {wrong[0]}, which is no bin of the problem or draining already.")
    wrong = [bin for bin in scaling.keep if not 0 <= bin < problem.bins or not marked[bin]]
    if wrong:
        raise PlanningError(
            f"the policy keeps bin {wrong[0]}, which it had not marked, or which is empty and released."
        )

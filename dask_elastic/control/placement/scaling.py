"""Scaling policies of the placement loop: number of nodes by utilisation, reported or carried out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dask_elastic.control.scaling import Scaling, ScalingPolicy, TargetUtilisation
from dask_elastic.planning.placement.problem import Mask, Placement, PlacementProblem

SMALL = 64
LARGE_PERIODS = 6
"""A larger cluster is asked for its number of nodes in one of so many periods, since that takes several plans."""


@dataclass
class ReportedScaling:
    """A policy that changes no node, and remembers what another policy would have changed.

    Parameters
    ----------
    policy : ScalingPolicy
        The other policy.

    Attributes
    ----------
    wanted : Scaling
        Its newest decision.

    Notes
    -----
    ALBIC, section 4.2: nodes are added and removed by whatever provides them. Without one, a node that is marked for
    removal would be drained for nothing.

    Examples
    --------
    >>> import numpy as np
    >>> problem = PlacementProblem([30, 30, 30], current=[0, 0, 1], bins=2, capacity=[50, 50])
    >>> policy = ReportedScaling()
    >>> stay = problem.placement(problem.current)
    >>> policy.decide(problem, stay, np.zeros(2, dtype=bool), Scaling()).changes, policy.wanted.add
    (False, 1)
    """

    policy: ScalingPolicy = field(default_factory=TargetUtilisation)
    wanted: Scaling = field(default_factory=Scaling)
    _nodes: tuple[str, ...] = field(default=(), init=False)
    _periods: int = field(default=0, init=False)

    def note_nodes(self, nodes: tuple[str, ...]) -> None:
        """Note the nodes of the period, which the bins of its problem stand for."""
        if nodes != self._nodes:
            self._nodes, self._periods, self.wanted = nodes, 0, Scaling(quiet=self.wanted.quiet)
        self._periods += 1

    def decide(self, problem: PlacementProblem, plan: Placement, marked: Mask, last: Scaling) -> Scaling:
        """Return a decision without changes; see `ScalingPolicy.decide`."""
        if problem.bins > SMALL and self._periods % LARGE_PERIODS != 1:
            return replace(self.wanted, add=0, remove=(), keep=())
        decided = self.policy.decide(problem, plan, marked, self.wanted)
        # What is not carried out is still wanted in the next period.
        self.wanted = replace(decided, quiet=self.wanted.quiet) if decided.remove else decided
        return replace(self.wanted, add=0, remove=(), keep=())

"""Scaling policies of the placement loop: number of nodes by utilisation, reported or carried out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dask_elastic.control.scaling import Scaling, ScalingPolicy, TargetUtilisation
from dask_elastic.planning.placement.problem import Mask, Placement, PlacementProblem


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

    def decide(self, problem: PlacementProblem, plan: Placement, marked: Mask, last: Scaling) -> Scaling:
        """Return a decision without changes; see `ScalingPolicy.decide`."""
        decided = self.policy.decide(problem, plan, marked, self.wanted)
        # What is not carried out is still wanted in the next period.
        self.wanted = replace(decided, quiet=self.wanted.quiet) if decided.remove else decided
        return replace(self.wanted, add=0, remove=(), keep=())

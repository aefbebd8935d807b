"""A plan that gained too little: no other is made while hardly anything changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dask_elastic.planning.placement.problem import PlacementProblem

LONGEST = 5
"""Periods for which no other plan is made at the longest: loads may change without a change of the distance."""


@dataclass(frozen=True)
class FruitlessPlan:
    """What a plan without gain was made for.

    Parameters
    ----------
    nodes : tuple of str
        The addresses of the nodes.
    groups : bytes
        The homes, the nodes that are draining, and the executors that stay.
    distance, collocation : float
        The load distance as a share of the mean, and the part of the traffic within nodes, both without moves.
    skipped : int
        Periods since.
    """

    nodes: tuple[str, ...]
    groups: bytes
    distance: float
    collocation: float
    skipped: int = 0

    @staticmethod
    def of(problem: PlacementProblem, nodes: tuple[str, ...], distance: float, collocation: float) -> FruitlessPlan:
        """Return what is remembered of a problem.

        Examples
        --------
        >>> problem = PlacementProblem([4, 4, 2], current=[0, 0, 1], bins=2)
        >>> plan = FruitlessPlan.of(problem, ("a", "b"), 0.6, 1.0)
        >>> [plan.covers(problem, ("a", "b"), distance, 1.0, 0.05) for distance in (0.61, 0.7)]
        [True, False]
        """
        parts = (problem.current, problem.draining, problem.pinned)
        return FruitlessPlan(nodes, b"|".join(part.tobytes() for part in parts), distance, collocation)

    def covers(
        self, problem: PlacementProblem, nodes: tuple[str, ...], distance: float, collocation: float, least_gain: float
    ) -> bool:
        """Return whether another plan would hardly gain more.

        Parameters
        ----------
        problem : PlacementProblem
            The present problem.
        nodes : tuple of str
            The address of each of its bins.
        distance, collocation : float
            Its load distance and collocation, without moves.
        least_gain : float
            What a plan must gain; half of it counts as no change.
        """
        return (
            self.skipped < LONGEST
            and distance <= self.distance + least_gain / 2
            and collocation >= self.collocation - least_gain / 2
            and self.groups == FruitlessPlan.of(problem, nodes, distance, collocation).groups
            and self.nodes == nodes
        )

    def later(self) -> FruitlessPlan:
        """Return the same one period later."""
        return replace(self, skipped=self.skipped + 1)

"""State migration, Appendix A and section 6: balance and moves of the baselines."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.placement.consistent_hash import ConsistentHash
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import imbalance
from dask_elastic.planning.placement.storm import Storm

LOAD = np.array([1.0] * 10 + [2.0] * 2)


def test_appendix_a_milp_balances_two_nodes_and_hashing_may_not():
    # Balanced: five light tasks and a heavy one on each node. The ring may place both heavy ones on one node.
    problem = PlacementProblem(LOAD, np.full(12, -1), 2)
    best = Milp().plan(problem)
    assert sorted(problem.shares(best.bin)) == [7, 7]
    together = [len(set(ConsistentHash().plan(problem, seed).bin[10:])) == 1 for seed in range(100)]
    assert 25 < sum(together) < 75


def test_appendix_a_milp_moves_two_tasks_to_third_node_and_hashing_four():
    # Moving only the two heavy tasks reaches the best balance; the ring moves four tasks.
    current = np.array([0, 1] * 6)
    problem = PlacementProblem(LOAD, current, 3, state_bytes=LOAD)
    two = PlacementProblem(LOAD, current, 3, state_bytes=LOAD, max_moves=2)
    best = Milp().plan(two)
    assert np.flatnonzero(two.moved(best.bin)).tolist() == [10, 11]
    assert imbalance(problem, best.bin) == pytest.approx(5 / (14 / 3))
    moves = []
    for seed in range(100):
        before = ConsistentHash().plan(PlacementProblem(LOAD, np.full(12, -1), 3, draining=[2]), seed).bin
        moves.append(ConsistentHash().plan(PlacementProblem(LOAD, before, 3), seed).moves)
    assert 3.4 < np.mean(moves) < 4.6


def test_storm_with_third_node_moves_four_of_twelve_tasks():
    current = np.repeat([0, 1], 6)
    problem = PlacementProblem(np.ones(12), current, 3, state_bytes=np.ones(12))
    placement = Storm().plan(problem)
    assert np.bincount(placement.bin).tolist() == [4, 4, 4]
    assert (np.diff(placement.bin) != 0).sum() == 2
    assert placement.cost == 4

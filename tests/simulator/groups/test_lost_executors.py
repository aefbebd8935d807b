"""Executors that are lost while groups move: the job restarts from its checkpoint, and every row counts once."""

from __future__ import annotations

from collections import Counter

import pytest
from durable_group_scenario import DurableGroupScenario, lost_at_each_step

SEEDS = 14

MOVES = {
    19: (range(20, 330, 14), {"holding", "pausing", "moving"}),
    22: (range(20, 160, 14), {"holding", "switching"}),
}
"""Jobs by seed: steps from the request of a move to its end, and its longer phases."""


def test_jobs_whose_groups_move_survive_lost_homes_and_schedulers():
    happened = Counter()
    for seed in range(SEEDS):
        scenario = DurableGroupScenario(seed)
        happened += scenario.run().happened
        for world in scenario.worlds:
            happened += world.groups.happened
    assert happened["progressive arrived"] > SEEDS // 4
    assert happened["home"] > SEEDS // 4
    assert happened["generations from a checkpoint"] > 0


@pytest.mark.parametrize("seed", MOVES)
def test_executors_are_lost_in_each_longer_phase_of_a_move(seed):
    steps, phases = MOVES[seed]
    lost = lost_at_each_step(seed, steps)
    assert phases <= {phase.rpartition(" ")[2] for phase in lost}

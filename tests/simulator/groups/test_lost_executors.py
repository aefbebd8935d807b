"""Executors that are lost while groups move: the job restarts from its checkpoint, and every row counts once."""

from __future__ import annotations

from collections import Counter

import pytest
from durable_group_scenario import DurableGroupScenario, lost_at_each_step

from dask_elastic.migration.group_move import PROGRESSIVE, SYNCHRONISED

SEEDS = 9

STEPS = range(20, 160, 14)
"""From the request of a move to its end."""

PHASES = {
    PROGRESSIVE: ((5, 12, 27), {"holding", "switching"}),
    SYNCHRONISED: ((19, 35, 59), {"holding", "pausing", "moving"}),
}
"""Seeds of jobs with moves of each strategy, and its longer phases."""


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


@pytest.mark.parametrize("strategy", PHASES)
def test_executors_are_lost_in_each_longer_phase_of_a_move(strategy):
    seeds, phases = PHASES[strategy]
    lost = sum((lost_at_each_step(seed, STEPS) for seed in seeds), Counter())
    assert {f"{strategy} {phase}" for phase in phases} <= lost.keys()

"""Homes that are lost while one moves: the job restarts from its checkpoint, and every row counts once."""

from __future__ import annotations

from collections import Counter

from durable_home_scenario import DurableHomeScenario, lost_at_each_step

SEEDS = 10

MOVE = {18: range(24, 200, 7), 35: range(62, 230, 7)}
"""Jobs by seed, and steps from the request of a move to its end."""


def test_jobs_whose_homes_move_survive_lost_homes_and_schedulers():
    happened = Counter()
    for seed in range(SEEDS):
        scenario = DurableHomeScenario(seed)
        happened += scenario.run().happened
        for world in scenario.worlds:
            happened += world.moves.happened
    assert happened["moved"] > SEEDS // 8
    assert happened["home"] > SEEDS // 4
    assert happened["generations from a checkpoint"] > 0


def test_homes_are_lost_in_every_phase_of_a_move():
    phases = Counter()
    for seed, steps in MOVE.items():
        phases += lost_at_each_step(seed, steps)
    assert {"copying", "preparing", "switching", "fencing", "handing over"} <= phases.keys()

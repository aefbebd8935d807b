from __future__ import annotations

from collections import Counter

import pytest

SEEDS = 500
PARTS = 10


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("part", range(PARTS))
def test_what_always_holds_holds(simulate, happened, part):
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        simulation = simulate(seed)
        simulation.run()
        happened["seeds"] += 1
        happened["steps"] += simulation.world.schedule.steps
        for home in simulation.world.homes.values():
            moves = home.executor.moves
            happened["moves"] += moves.finished
            happened["moves across nodes"] += moves.finished_across
            happened["flushes"] += len(home.flushed)
        for remote in simulation.world.remotes.values():
            happened["remote tasks"] += remote.started
            happened["remote tasks that ended"] += remote.started - len(remote.part.tasks)
        happened["refused"] += simulation.disturber.refused


def test_what_was_to_be_tested_happened(happened):
    assert happened["seeds"] == SEEDS
    assert happened["moves"] - happened["moves across nodes"] > SEEDS
    assert happened["moves across nodes"] > SEEDS
    assert happened["remote tasks"] > SEEDS
    assert happened["remote tasks that ended"] > SEEDS // 2
    assert happened["flushes"] > SEEDS
    assert happened["refused"] > 0


def test_one_seed_gives_one_history(simulate):
    first, second = simulate(7), simulate(7)
    first.run()
    second.run()
    assert first.world.schedule.steps == second.world.schedule.steps > 100
    assert first.world.schedule.history(10**6) == second.world.schedule.history(10**6)


def test_without_disturbance_nothing_moves(simulate):
    simulation = simulate(3, disturbed=0.0)
    simulation.run()
    assert sum(home.executor.moves.finished for home in simulation.world.homes.values()) == 0

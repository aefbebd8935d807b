from __future__ import annotations

from collections import Counter

import pytest

from dask_elastic.executor import piece

PARTS = 10
SEEDS_OF_A_PART = 50


@pytest.mark.parametrize("part", range(PARTS))
def test_what_always_holds_holds(simulate, part, monkeypatch):
    if part % 2:
        # Small blocks are sorted by their tasks then, as large ones are.
        monkeypatch.setattr(piece, "SMALL_BLOCK", 4)
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        simulation = simulate(seed)
        simulation.run()
        happened += what_happened(simulation)
    assert happened["moves"] - happened["moves across nodes"] > SEEDS_OF_A_PART
    assert happened["moves across nodes"] > SEEDS_OF_A_PART
    assert happened["remote tasks"] > SEEDS_OF_A_PART
    assert happened["remote tasks that ended"] > SEEDS_OF_A_PART // 2
    assert happened["flushes"] > SEEDS_OF_A_PART // 2
    assert happened["refused"] > 0


def what_happened(simulation):
    happened = Counter(refused=simulation.disturber.refused)
    for home in simulation.world.homes.values():
        moves = home.executor.moves
        happened["moves"] += moves.finished
        happened["moves across nodes"] += moves.finished_across
        happened["flushes"] += len(home.flushed)
    for remote in simulation.world.remotes.values():
        happened["remote tasks"] += remote.started
        happened["remote tasks that ended"] += remote.started - len(remote.part.tasks)
    return happened


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

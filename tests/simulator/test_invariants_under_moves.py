"""Moves, changes of cores and flushes at any time, without losses of nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from scenario import Scenario

from dask_elastic.executor import piece

PARTS = 5
SEEDS_OF_A_PART = 15


@pytest.mark.parametrize("part", range(PARTS))
def test_invariants_hold_under_moves(part, monkeypatch):
    if part % 2:
        # Small blocks are then sorted by task, as large ones are.
        monkeypatch.setattr(piece, "SMALL_BLOCK", 4)
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        happened += event_counts(Scenario(seed, outages=0.0).check())
    assert happened["moves"] - happened["moves across nodes"] > SEEDS_OF_A_PART // 2
    assert happened["moves across nodes"] > SEEDS_OF_A_PART // 2
    assert happened["remote tasks"] > SEEDS_OF_A_PART // 2
    assert happened["remote tasks that ended"] > SEEDS_OF_A_PART // 4
    assert happened["flushes"] > SEEDS_OF_A_PART // 4
    assert happened["refused"] > 0


@pytest.mark.parametrize("outages", [0.0, 0.3])
def test_invariants_hold_if_another_thread_runs_what_was_left_to_it(outages):
    happened = Counter()
    for seed in range(14):
        simulation = Scenario(seed, outages, leaves=0.6).check()
        happened["left"] += sum(home.left for home in simulation.world.homes.values())
    assert happened["left"] > 100


def event_counts(simulation):
    happened = Counter(refused=simulation.disturber.refused)
    for home in simulation.world.homes.values():
        moves = home.executor.moves
        happened["moves"] += moves.finished
        happened["moves across nodes"] += moves.finished_across
        happened["flushes"] += len(home.flushes)
    for remote in simulation.world.remotes.values():
        happened["remote tasks"] += remote.started
        happened["remote tasks that ended"] += remote.started - len(remote.part.tasks)
    return happened


@pytest.mark.parametrize("outages", [0.0, 0.3])
def test_equal_seeds_give_equal_histories(outages):
    first, second = (Scenario(7, outages, history=True).run() for _ in range(2))
    assert first.world.schedule.steps == second.world.schedule.steps > 100
    assert first.world.schedule.history(10**6) == second.world.schedule.history(10**6)


def test_no_shard_moves_without_disturbances():
    simulation = Scenario(3, outages=0.0, disturbances=()).run()
    assert sum(home.executor.moves.finished for home in simulation.world.homes.values()) == 0

"""Simulated jobs continue from every complete checkpoint as if nothing had happened."""

from __future__ import annotations

from collections import Counter

from checkpointed_scenario import CheckpointedScenario

SEEDS = 30


def test_jobs_continue_from_every_complete_checkpoint_under_moves_and_outages():
    happened = Counter()
    for seed in range(SEEDS):
        simulation = CheckpointedScenario(seed, pauses=0.02 if seed % 5 == 0 else 0.0).run()
        checkpoints = simulation.world.checkpoints
        happened["complete"] += len(checkpoints.complete)
        happened["given up"] += len(checkpoints.given_up)
        happened["continued in the middle"] += sum(
            any(standing.offset and not standing.ended for standing in checkpoint.sources.values())
            for checkpoint in checkpoints.complete
        )
        happened += simulation.happened()
    assert happened["complete"] > SEEDS
    assert happened["given up"] > SEEDS / 4
    assert happened["continued in the middle"] > SEEDS / 4
    assert happened["losses with replay"] > SEEDS / 10

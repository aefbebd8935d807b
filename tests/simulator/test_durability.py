"""Jobs restart through crashes at every step of a checkpoint, and sinks show each row once."""

from __future__ import annotations

from collections import Counter

import pytest
from durable_scenario import DurableScenario

PARTS = 10
SEEDS_OF_A_PART = 150


@pytest.mark.parametrize("part", range(PARTS))
def test_jobs_survive_crashes_and_sinks_show_each_row_once(part):
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        job = DurableScenario(seed).check()
        happened += job.happened + job.storage.happened
        happened["committed again"] += job.storage.target.repeated
        happened["deleted"] += job.storage.target.deleted
        happened["of earlier generations"] += sum(coordinator.refused for coordinator in job.coordinators)
    for what in (
        "generations from a checkpoint", "complete", "given up", "home", "scheduler", "second scheduler", "survivors",
        "failed", "hung", "answers lost", "committed again", "deleted", "of earlier generations",
    ):  # fmt: skip
        assert happened[what] > SEEDS_OF_A_PART // 10, what

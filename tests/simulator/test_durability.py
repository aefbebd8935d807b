"""Jobs restart through crashes at every step of a checkpoint; sinks show each row once, and no row is unsaved."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from durable_scenario import SHARDS, STATE, DurableScenario, expected_state, follow, make_batches
from followed_job import SOURCES, Numbers, state_of

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.simulator.durability import generation
from dask_elastic.simulator.durability.coordinator import SimulatedCoordinator
from dask_elastic.simulator.durability.durable_job import DurableJob
from dask_elastic.topology import Topology, build_components

PARTS = 5
SEEDS_OF_A_PART = 40
SINKLESS_SEEDS = 80


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


class SinklessScenario(DurableScenario):
    """A durable job whose last operator has no consumer."""

    def _components(self, batches):
        topology = Topology("sinkless")
        per_key = topology.source("numbers", Numbers(batches)).key_by("key")
        per_key.compute(follow, name="per_key", state=STATE, shards=SHARDS)
        return build_components(topology)

    @staticmethod
    def _check(world, target, batches):
        assert state_of(world, "per_key", "key") == expected_state(batches)

    def run(self) -> DurableJob:
        job = super().run()
        manifest = Catalog(job.storage.folder).load()
        saved, _ = job._restored(manifest.number, manifest)
        rows = [row for cut in saved.executors.values() if cut.state is not None for row in cut.state.to_pylist()]
        counts = {row["key"]: row["count"] for row in rows}
        batches = make_batches(np.random.default_rng([self.seed, 6]))
        assert counts == {key: row["count"] for key, row in expected_state(batches).items()}
        assert len(saved.sources) == SOURCES
        assert all(standing.ended for standing in saved.sources.values())
        return job


def test_newest_checkpoint_of_finished_job_without_sinks_has_all_rows():
    happened = Counter()
    for seed in range(SINKLESS_SEEDS):
        happened += SinklessScenario(seed).check().happened
    for what in ("generations from a checkpoint", "complete", "given up", "home", "scheduler"):
        assert happened[what] > SINKLESS_SEEDS // 10, what


def test_job_without_sinks_that_ends_at_once_is_found(monkeypatch):
    monkeypatch.setattr(generation, "unsaved_ends", lambda inputs, sinks: frozenset())
    if not any(SinklessScenario(seed).fails() for seed in range(SINKLESS_SEEDS)):
        pytest.fail("no seed finds it")


def test_last_checkpoint_that_began_before_the_end_is_found(monkeypatch):
    real = SimulatedCoordinator._publish

    def publish(self, part, progress):
        published = yield from real(self, part, progress)
        part.saved |= published
        return published

    monkeypatch.setattr(SimulatedCoordinator, "_publish", publish)
    if not any(SinklessScenario(seed).fails() for seed in range(SINKLESS_SEEDS)):
        pytest.fail("no seed finds it")

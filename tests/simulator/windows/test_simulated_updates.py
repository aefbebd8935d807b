"""Open instances have results after each batch that changes them, under moves, losses, restarts and changes of plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import window_job
from sharing_scenario import BETWEEN, CHANGES, SharingSimulation
from window_job import TIME, Expected, Instance
from window_scenario import WindowScenario, WindowSimulation

from dask_elastic.executor.piece import Replay
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.windows.partial_kinds import PartialKinds
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.updated_instances import UpdatedInstances, _Touched
from dask_elastic.simulator import SimulatedCheckpoint
from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.window_fields import NO_END
from dask_elastic.topology.windowing import EventWindow, Windowing

SEEDS = 5
MOST_SEEDS = 20
TRIED_FIRST = (14,)
"""Seeds that find what most others do not."""

UPDATED = (
    Windowing((EventWindow(0, 30, 10),), (TIME,), emit="updates", share=True),
    Windowing((EventWindow(0, 30, 10),), (TIME,), emit="updates", share=True, allowed_lateness=10),
    Windowing(
        (EventWindow(0, 10, 10), EventWindow(0, 30, 30), EventWindow(5, 20, 10)), (TIME,), emit="updates", share=True
    ),
    Windowing((EventWindow(3, 40, 10),), (TIME,), emit="updates", share=True),
    Windowing((EventWindow(0, 8, 2), EventWindow(0, 60, 20)), (TIME,), 30, emit="updates", share=True),
)
CHANGING = [replace(windowing, share="auto") for windowing in UPDATED]


@dataclass
class UpdatedSimulation(WindowSimulation):
    """One simulation; each result of an open instance has rows that those before it lack, and the last one has all."""

    def _check_instance(self, instance: Instance, results: list[dict], wanted: Expected) -> None:
        super()._check_instance(instance, results, wanted)
        updates = [row["numbers"] for row in results if row["revision"] is None]
        for before, after in pairwise(updates):
            assert set(before) < set(after), (instance, before, after)
        on_time = sorted(wanted.on_time.get(instance, []))
        assert (updates[-1] if updates else []) == on_time, instance

    def happened(self) -> Counter[str]:
        happened = super().happened()
        for results in self._emitted().values():
            happened["updated again"] += sum(row["revision"] is None for row in results) > 1
        return happened


@dataclass(frozen=True)
class UpdatedScenario(WindowScenario):
    """A `WindowScenario` with windows that share slices and have updates."""

    @property
    def windowing(self) -> Windowing:
        found = UPDATED[self.seed % len(UPDATED)]
        assert found.shares
        return found

    def _simulation(self, batches, shards, random, options) -> UpdatedSimulation:
        return UpdatedSimulation(**vars(super()._simulation(batches, shards, random, options)))

    def continued(self, first: WindowSimulation, checkpoint: SimulatedCheckpoint) -> UpdatedSimulation:
        return UpdatedSimulation(**vars(super().continued(first, checkpoint)))


@dataclass(frozen=True)
class UnchangedScenario(UpdatedScenario):
    """An `UpdatedScenario` with windows whose plan may change, but does not."""

    @property
    def windowing(self) -> Windowing:
        return CHANGING[self.seed % len(CHANGING)]


@dataclass
class ChangingSimulation(SharingSimulation, UpdatedSimulation):
    """One simulation; each update has all rows of its instance, whatever its partials are of."""


@dataclass(frozen=True)
class ChangingScenario(WindowScenario):
    """A `WindowScenario` with updates, whose plan changes at random times."""

    @property
    def windowing(self) -> Windowing:
        found = CHANGING[self.seed % len(CHANGING)]
        assert found.changes_sharing
        return found

    def _simulation(self, batches, shards, random, options) -> ChangingSimulation:
        return self._changing(super()._simulation(batches, shards, random, options))

    def continued(self, first: WindowSimulation, checkpoint: SimulatedCheckpoint) -> ChangingSimulation:
        return self._changing(super().continued(first, checkpoint))

    def _changing(self, made: WindowSimulation) -> ChangingSimulation:
        simulation = ChangingSimulation(**vars(made))
        random = np.random.default_rng([self.seed, 5])
        for at in np.cumsum(random.integers(1, BETWEEN, CHANGES)).tolist():
            simulation.world.schedule.at(at, partial(simulation.change, random))
        return simulation


@pytest.fixture(autouse=True)
def _few_keys(monkeypatch):
    """Let several batches have rows of a key in one instance."""
    monkeypatch.setattr(window_job, "KEYS", 3)


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_change_of_an_open_instance_has_one_result(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += UpdatedScenario(seed, outages).check().happened()
    for what in ("checkpoints", "moves across nodes", "corrected", "late", "updated again"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_open_instances_have_results_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(2):
        UpdatedScenario(seed).check()
    assert ChangingScenario(0).check().happened()["rows of instances"]


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_open_instances_have_results_in_the_task_of_another_compute(place):
    for seed in range(2):
        UpdatedScenario(seed, place=place).check()


def test_updates_in_the_task_of_another_compute_are_of_instances_since_no_change_follows_the_load(monkeypatch):
    slices, real = [], UpdatedInstances.write
    monkeypatch.setattr(UpdatedInstances, "write", lambda self, *args: slices.append(1) or real(self, *args))
    for seed in range(2):
        happened = UnchangedScenario(seed, place="behind").check().happened()
        assert happened["updated again"]
    assert not slices


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_updates_do_not_depend_on_changes_of_the_plan(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += ChangingScenario(seed, outages).check().happened()
    for what in ("rows of instances", "closes of both", "checkpoints", "moves across nodes", "updated again"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


# mutants


def update_leaves_twice(monkeypatch):
    """Instances that begin behind the slice of a row have their last result again."""
    real = _Touched.within
    monkeypatch.setattr(_Touched, "within", lambda self, first, last: real(self, first - 1, last))


def update_is_repeated_after_a_loss(monkeypatch):
    """Results of rows that had left before a loss leave again with their replay."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        for shard, piece in real(self, task, sent, now):
            yield shard, piece._replace(replay=Replay.LOUD)

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def update_is_missing_for_all_but_the_first_key(monkeypatch):
    real = _Touched.within
    monkeypatch.setattr(_Touched, "within", lambda self, first, last: real(self, first, last)[:1])


def update_is_missing_for_longer_windows(monkeypatch):
    """Only the instances that close next have results."""
    real = UpdatedInstances._results

    def results(self, bound, touched, reached):
        made = real(self, bound, touched, reached)
        ends = [batch.column("window_end").to_numpy() for batch in made]
        return [batch.filter(one == one.min()) for batch, one in zip(made, ends, strict=True)]

    monkeypatch.setattr(UpdatedInstances, "_results", results)


def update_lacks_slices_in_other_places(monkeypatch):
    """Only the first place of a slice is looked up."""
    monkeypatch.setattr(SlicePlaces, "identities", lambda self, numbers: [self._at_level(numbers, 0)])


def closed_instances_have_updates(monkeypatch):
    """Late rows make results of instances that have closed."""
    real = UpdatedInstances._results
    monkeypatch.setattr(
        UpdatedInstances, "_results", lambda self, bound, of, reached: real(self, bound, of, reached - 30)
    )


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and name[0].islower() and name[:5] != "test_"
]

# of changes of the plan


def update_of_slices_lacks_the_partial_of_the_instance(monkeypatch):
    real = PartialKinds.last_end
    monkeypatch.setattr(
        PartialKinds, "last_end", lambda self, bound, of_instances: NO_END if of_instances else real(self, bound, False)
    )


def update_of_an_instance_lacks_its_slices(monkeypatch):
    real = PartialKinds.last_end
    monkeypatch.setattr(
        PartialKinds, "last_end", lambda self, bound, of_instances: real(self, bound, True) if of_instances else NO_END
    )


def rows_of_instances_have_no_update(monkeypatch):
    monkeypatch.setattr(
        UpdatedInstances, "write_instances", lambda self, bound, write: write.write(self._session) or []
    )


def partial_of_the_instance_is_that_of_another_one(monkeypatch):
    real = UpdatedInstances._of_own

    def of_own(self, bound, touched, changed):
        return real(self, bound, touched, changed._replace(bounds=np.roll(changed.bounds, 1, axis=0)))

    monkeypatch.setattr(UpdatedInstances, "_of_own", of_own)


CHANGE_MUTANTS = [
    update_of_slices_lacks_the_partial_of_the_instance,
    update_of_an_instance_lacks_its_slices,
    rows_of_instances_have_no_update,
    partial_of_the_instance_is_that_of_another_one,
]


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [(mutant, UpdatedScenario) for mutant in MUTANTS] + [(mutant, ChangingScenario) for mutant in CHANGE_MUTANTS],
    ids=lambda value: value.__name__,
)
def test_mutant_is_found(mutant, scenario, monkeypatch):
    mutant(monkeypatch)
    for seed in (*TRIED_FIRST, *range(MOST_SEEDS)):
        if scenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

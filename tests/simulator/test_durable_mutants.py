"""Mutants of restarts and of commits in two phases: the checks must find each injected fault."""

from __future__ import annotations

from functools import partial

import pytest
from durable_scenario import DurableScenario

from dask_elastic.checkpoint import catalog, takeover
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.simulator.checkpoint_commands import CheckpointCommands
from dask_elastic.simulator.durability.coordinator import SimulatedCoordinator
from dask_elastic.simulator.durability.generation import SimulatedGeneration
from dask_elastic.simulator.durability.sink_target import SinkTarget
from dask_elastic.simulator.durability.transactional_sink import TransactionalSink
from dask_elastic.topology.transactions import Transactions

MOST_SEEDS = 400
FIRST_SEEDS = (504, 607, 394, 203, 148, 66, 21, 90, 51, 39, 32, 409, 459)
"""These find the mutants that few seeds find; in the first two, two generations take checkpoints of one number."""


def manifest_is_written_before_the_state(monkeypatch):
    """An executor acknowledges what it has yet to write."""
    real = SimulatedGeneration._write

    def write(self, checkpoint, executor, copied):
        path = f"state/{checkpoint}/{executor.component}-{executor.index}-{self.start.generation}"
        yield from self._acknowledge(checkpoint, executor, FileRef(path, len(b"state"), "simulated"))
        yield from real(self, checkpoint, executor, copied)

    monkeypatch.setattr(SimulatedGeneration, "_write", write)


def sinks_commit_before_the_manifest_is_written(monkeypatch):
    real = SimulatedCoordinator._publish

    def publish(self, part, progress):
        CheckpointCommands(part.world).tell_complete(progress.number)
        return (yield from real(self, part, progress))

    monkeypatch.setattr(SimulatedCoordinator, "_publish", publish)


def sinks_commit_when_the_manifest_could_not_be_written(monkeypatch):
    real = SimulatedCoordinator._publish

    def publish(self, part, progress):
        yield from real(self, part, progress)
        return True

    monkeypatch.setattr(SimulatedCoordinator, "_publish", publish)


def second_commit_shows_the_rows_again(monkeypatch):
    real = SinkTarget.commit
    kept = {}

    def commit(self, transaction):
        kept.setdefault((id(self), transaction), self.hidden.get(transaction))
        if self.visible.pop(transaction, None) is not None:
            self.hidden[transaction] = kept[id(self), transaction]
        real(self, transaction)

    monkeypatch.setattr(SinkTarget, "commit", commit)


def handles_of_given_up_checkpoints_are_not_acknowledged_again(monkeypatch):
    handles = property(lambda self: tuple(self._prepared[number] for number in sorted(self._prepared)[-1:]))
    monkeypatch.setattr(Transactions, "handles", handles)


def handles_of_given_up_checkpoints_are_not_committed(monkeypatch):
    def complete(self, checkpoint):
        due = self._prepared.pop(checkpoint, None)
        return () if due is None else (due,)

    monkeypatch.setattr(Transactions, "complete", complete)


def later_handles_are_committed_with_an_earlier_checkpoint(monkeypatch):
    def complete(self, checkpoint):
        due, self._prepared = self._prepared, {}
        return tuple(due.values())

    monkeypatch.setattr(Transactions, "complete", complete)


def sink_ends_before_its_last_rows_are_committed(monkeypatch):
    monkeypatch.setattr(Transactions, "is_finished", property(lambda self: self._last is not None))


def restart_commits_nothing(monkeypatch):
    real = TransactionalSink._open

    def open_(self):
        self._recovered = []
        yield from real(self)

    monkeypatch.setattr(TransactionalSink, "_open", open_)


def restart_deletes_what_the_checkpoint_covers(monkeypatch):
    real = SinkTarget.delete_replayed
    delete = lambda self, generation, checkpoint: real(self, generation, checkpoint - 1)  # noqa: E731
    monkeypatch.setattr(SinkTarget, "delete_replayed", delete)


def generation_is_not_persisted_before_it_is_used(monkeypatch):
    def next_generation(folder, above=0, owner=""):
        return max(above, takeover.newest_generation(folder)) + 1

    monkeypatch.setattr(takeover, "next_generation", next_generation)


def acknowledgements_of_earlier_generations_count(monkeypatch):
    real = SimulatedCoordinator.acknowledge
    acknowledge = lambda self, generation, *part: real(self, self._generation, *part)  # noqa: E731
    monkeypatch.setattr(SimulatedCoordinator, "acknowledge", acknowledge)


def late_manifests_of_earlier_generations_are_used(monkeypatch):
    monkeypatch.setattr(catalog, "is_superseded", lambda bases, generation, checkpoint: False)


def base_of_a_generation_is_not_written_down(monkeypatch):
    monkeypatch.setattr(takeover, "record_base", lambda folder, generation, checkpoint: None)


def scheduler_commits_although_another_one_has_continued(monkeypatch):
    def complete_checkpoint(known_catalog, manifest):
        yield partial(known_catalog.publish, manifest)

    replace_in_coordinator(monkeypatch, "complete_checkpoint", complete_checkpoint)


def replace_in_coordinator(monkeypatch, name, function):
    monkeypatch.setattr(f"dask_elastic.simulator.durability.coordinator.{name}", function)


MUTANTS = [
    value
    for value in dict(globals()).values()
    if callable(value) and getattr(value, "__module__", "") == __name__ and value is not replace_in_coordinator
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in (*FIRST_SEEDS, *range(MOST_SEEDS)):
        if DurableScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

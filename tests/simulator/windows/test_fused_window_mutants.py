"""Mutants of windows in the task of another compute: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from window_scenario import WindowScenario

from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.fused.fused_compute import FusedCompute
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.vocab.compute_measure import ComputeTally

MOST_SEEDS = 30


def record_does_not_reach_fused_computes(monkeypatch):
    monkeypatch.setattr(Emitter, "fire", lambda self, batches, batch: self.emit(batches, batch.stamp))


def fused_compute_takes_late_rows_as_on_time(monkeypatch):
    real = FusedCompute.begin
    monkeypatch.setattr(FusedCompute, "begin", lambda self, batch: real(self, batch._replace(reached=None)))


def replayed_rows_of_a_fused_compute_count_again(monkeypatch):
    real = FusedCompute.begin
    monkeypatch.setattr(FusedCompute, "begin", lambda self, batch: real(self, batch._replace(settled=False)))


def rows_of_fused_computes_are_not_counted(monkeypatch):
    real = ComponentStore.tallies
    monkeypatch.setattr(
        ComponentStore,
        "tallies",
        lambda self, task: {name: ComputeTally() if name else one for name, one in real(self, task).items()},
    )


def remote_rows_are_counted_for_the_first_compute(monkeypatch):
    """A message of a remote task has its counts in another order than the home reads them."""
    real = ComponentStore.take_tallies
    monkeypatch.setattr(ComponentStore, "take_tallies", lambda self, task: dict(reversed([*real(self, task).items()])))


MUTANTS = [
    value for value in dict(globals()).values() if callable(value) and getattr(value, "__module__", "") == __name__
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    if not any(WindowScenario(seed, place="behind").fails() for seed in range(MOST_SEEDS)):
        pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

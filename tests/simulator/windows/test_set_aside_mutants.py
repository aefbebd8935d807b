"""Mutants of how state is set aside for instant moves: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from smooth_scenario import SmoothScenario

from dask_elastic.executor.instant_moves import InstantMoves
from dask_elastic.executor.moving import handed_over
from dask_elastic.executor.moving.handed_over import HandedOver

MOST_SEEDS = 60

TRIED_FIRST = (16, 32)
"""Seeds that find what most others do not."""


def flushes_while_portions_are_taken_are_lost(monkeypatch):
    real = HandedOver.change
    monkeypatch.setattr(HandedOver, "change", lambda self, state: real(self, state) if self.is_taken else None)
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)


def target_begins_before_all_portions_are_taken(monkeypatch):
    monkeypatch.setattr(InstantMoves, "_is_setting_aside", lambda self, handed: False)
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)


def cancelled_move_leaves_the_state_aside(monkeypatch):
    monkeypatch.setattr(HandedOver, "put_back", lambda self, store: None)


def flush_of_the_target_reaches_the_primary_copy_of_a_source_at_home(monkeypatch):
    monkeypatch.setattr(HandedOver, "aside_of", property(lambda self: self.move.source))


def state_of_a_source_at_home_is_taken_while_it_works(monkeypatch):
    real = InstantMoves._send_label

    def send(self, move):
        handed = self._by_shard[move.shard]
        if not handed.source_at_home:
            return real(self, move)
        handed.is_free = True
        return real(self, move) + self._set_aside(move.shard)

    monkeypatch.setattr(InstantMoves, "_send_label", send)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        # Many moves and flushes.
        if SmoothScenario(seed, strategy="instant").fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

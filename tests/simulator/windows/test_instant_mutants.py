"""Mutants of instant moves: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from instant_scenario import InstantScenario

from dask_elastic.executor.instant_moves import InstantMoves
from dask_elastic.executor.moving import merging
from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.moving.merging import Merging
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.windows.handed_partials import HandedPartials, MergedPartials
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.vocab.state_record import PartialsMoved

MOST_SEEDS = 100

TRIED_FIRST = (22, 40, 13, 16, 20, 8)
"""Seeds that find what most others do not."""


def close_does_not_wait_for_the_partials(monkeypatch):
    monkeypatch.setattr(InstantMoves, "record_enters", lambda self, now: [])


def partials_that_a_loss_finds_at_the_target_are_not_merged_again(monkeypatch):
    """Partials that were merged, and not flushed, are lost with the target."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        if isinstance(sent.work.record, PartialsMoved):
            return iter(())
        return real(self, task, sent, now)

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def primary_copy_is_set_aside_and_stays(monkeypatch):
    """The state of the earlier owner is merged, and counts in the primary copy as well."""
    monkeypatch.setattr(PrimaryState, "portions_of", lambda self, shard, nbytes: iter([self.extract([shard])]))


def flush_of_the_source_reaches_the_primary_copy(monkeypatch):
    """What the source flushes after the switch overwrites what the target has flushed."""
    real = InstantMoves.install

    def install(self, task, state, labelled):
        real(self, task, state, labelled)
        self.store.install(state, dirty=self.store.track_dirty)

    monkeypatch.setattr(InstantMoves, "install", install)


def last_changes_of_the_source_are_lost(monkeypatch):
    """The partials are those of the last flush."""
    real = HandedState.__init__
    monkeypatch.setattr(HandedState, "__init__", lambda self, parts, changes=(): real(self, parts))


def partials_replace_what_the_target_has(monkeypatch):
    def update(self, current, rows, grouping):
        positions = rows.column("__position").to_numpy().take(grouping.rows)
        return [column.take(positions) for column in self._values]

    monkeypatch.setattr(MergedPartials, "update", update)


def partials_are_dropped(monkeypatch):
    monkeypatch.setattr(WindowLogic, "merge", lambda self, batch, policy: None)


def source_takes_part_although_it_closes(monkeypatch):
    """A move begins while the source processes a state record, which a loss lets the target repeat."""
    monkeypatch.setattr(InstantMoves, "_may_begin", lambda self, handed, source: not self._is_setting_aside(handed))


def partials_of_a_lost_source_are_forgotten(monkeypatch):
    real = InstantMoves.inherit

    def inherit(self, heirs, now):
        for handed in self._by_shard.values():
            if handed.move.source not in self.routes.tasks and not handed.move.has_left:
                handed._parts.clear()
                handed._changed.clear()
        return real(self, heirs, now)

    monkeypatch.setattr(InstantMoves, "inherit", inherit)


def partials_that_follow_are_forgotten(monkeypatch):
    """Only the first part of the partials is merged."""
    real = Merging.first

    def first(self, shard, state, now):
        found = real(self, shard, state, now)
        if shard in self._left:
            self._left[shard] = HandedState([])
        return found

    monkeypatch.setattr(merging, "MERGED_ROWS", 1)
    monkeypatch.setattr(Merging, "first", first)


def partials_of_keys_that_both_owners_have_are_not_merged(monkeypatch):
    monkeypatch.setattr(HandedPartials, "_merge_known", lambda self, session, chosen: None)


def partials_of_keys_that_both_owners_have_are_written(monkeypatch):
    """All partials of a part are written, if any of them is of a key that the target lacks."""
    real = HandedPartials._merge_known

    def merge_known(self, session, chosen):
        if len(chosen) == len(self._values[0]):
            return real(self, session, chosen)
        return session.scatter(self._located(session, chosen), [column.take(chosen) for column in self._values])

    monkeypatch.setattr(HandedPartials, "_merge_known", merge_known)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        if InstantScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

"""Mutants of instant moves: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from instant_scenario import InstantScenario

from dask_elastic.executor.instant_moves import InstantMoves
from dask_elastic.executor.moving import handed_over, merging
from dask_elastic.executor.moving.handed_over import HandedOver
from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.moving.merging import Merging
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.windows.handed_partials import MergedPartials
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.state import KeyedStore
from dask_elastic.vocab.state_record import PartialsMoved

MOST_SEEDS = 100

TRIED_FIRST = (34, 16, 28)
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
    taken = set()

    def take(self, shard, nbytes):
        if (self, shard) in taken:
            taken.remove((self, shard))
            return None
        taken.add((self, shard))
        return self.extract([shard])

    monkeypatch.setattr(PrimaryState, "take_portion", take)


def flush_of_the_source_reaches_the_primary_copy(monkeypatch):
    """What the source flushes after the switch overwrites what the target has flushed."""
    real = InstantMoves.install

    def install(self, task, state):
        real(self, task, state)
        self.store.install(state, dirty=self.store.track_dirty)

    monkeypatch.setattr(InstantMoves, "install", install)


def last_changes_of_the_source_are_lost(monkeypatch):
    """The partials are those of the last flush."""
    real = HandedState.__init__
    monkeypatch.setattr(HandedState, "__init__", lambda self, parts, changes=(): real(self, parts))


def flushes_while_portions_are_taken_are_lost(monkeypatch):
    real = HandedOver.change
    monkeypatch.setattr(HandedOver, "change", lambda self, state: real(self, state) if self.may_open else None)
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)


def target_begins_before_all_portions_are_taken(monkeypatch):
    monkeypatch.setattr(HandedOver, "may_open", property(lambda self: True))
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)


def cancelled_move_leaves_the_state_aside(monkeypatch):
    monkeypatch.setattr(HandedOver, "put_back", lambda self, store: None)


def state_that_was_taken_out_is_in_the_next_delta(monkeypatch):
    """A checkpoint has what a shard had before it moved, although its windows have closed."""
    real = KeyedStore.take_portion

    def take(self, shard, nbytes):
        tracked, self.track_dirty = self.track_dirty, False
        try:
            return real(self, shard, nbytes)
        finally:
            self.track_dirty = tracked

    monkeypatch.setattr(PrimaryState, "take_portion", take)


def flush_of_the_target_reaches_the_primary_copy_of_a_source_at_home(monkeypatch):
    monkeypatch.setattr(HandedOver, "aside_of", property(lambda self: self.move.source))


def flushes_of_the_target_are_not_put_in_place(monkeypatch):
    """What the target flushes before a source at home has left is missing if the target is lost."""

    def put(self, store):
        self._changed.clear()
        self.is_aside = False
        return False

    monkeypatch.setattr(HandedOver, "_put_portion", put)


def flushes_while_those_of_the_target_are_put_in_place_are_overtaken(monkeypatch):
    """The newest flush is put in place before older ones."""
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)
    monkeypatch.setattr(HandedOver, "_put_portion", _newest_first(HandedOver._put_portion))


def state_of_a_source_at_home_is_taken_while_it_works(monkeypatch):
    real = InstantMoves._send_label

    def send(self, move):
        handed = self._by_shard[move.shard]
        if not handed.source_at_home:
            return real(self, move)
        handed.is_free = True
        return real(self, move) + self._set_aside(move.shard)

    monkeypatch.setattr(InstantMoves, "_send_label", send)


def partials_replace_what_the_target_has(monkeypatch):
    def update(self, current, rows, grouping):
        positions = rows.column("__position").to_numpy().take(grouping.rows)
        return [column.take(positions) for column in self._values]

    monkeypatch.setattr(MergedPartials, "update", update)


def partials_are_dropped(monkeypatch):
    monkeypatch.setattr(WindowLogic, "merge", lambda self, batch, policy: None)


def checkpoint_is_made_without_the_partials(monkeypatch):
    """The primary copy is copied while partials are on their way."""
    monkeypatch.setattr(InstantMoves, "has_partials", property(lambda self: False))
    monkeypatch.setattr(InstantMoves, "lacks_state", property(lambda self: False))


def source_takes_part_although_it_closes(monkeypatch):
    """A move begins while the source processes a state record, which a loss lets the target repeat."""
    monkeypatch.setattr(InstantMoves, "_may_begin", lambda self, handed, source: handed.may_open)


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


def _newest_first(real):
    def put(self, store):
        self._changed.rotate(1)
        return real(self, store)

    return put


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        if InstantScenario(seed).failure() is not None:
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

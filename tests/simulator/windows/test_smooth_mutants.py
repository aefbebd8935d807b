"""Mutants of smooth moves: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from smooth_scenario import FOUND, OVERTAKEN, SmoothScenario, chosen_in_turn

from dask_elastic.executor import instant_moves, routes
from dask_elastic.executor.instant_moves import InstantMoves
from dask_elastic.executor.moving.handed_over import HandedOver
from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.moving.shared_shards import SharedShards
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import Work

MOST_SEEDS = 60

TRIED_FIRST = (38, 6, 85, 93, 10, 37)
"""Seeds that find what most others do not."""


def rows_of_both_tasks_count_for_all_windows(monkeypatch):
    monkeypatch.setattr(Work, "_effective_side", property(lambda self: None))


def rows_of_both_tasks_go_to_one(monkeypatch):
    real = SharedShards.parts

    def parts(self, shard, piece):
        found = real(self, shard, piece)
        if piece.block.record is None:
            kept = [one for one in found if one[1].block.side is None or one[1].block.side.later]
            lost = sum(part.length for _, part in found) - sum(part.length for _, part in kept)
            piece.receipt.rows -= lost
            self.added -= lost
            return kept
        return found

    monkeypatch.setattr(SharedShards, "parts", parts)


def rows_go_by_their_time_in_the_place_of_their_windows(monkeypatch):
    """Rows that are later than the switch go to the target, though their window began before."""
    from dask_elastic.executor.windows.row_sides import RowSides

    def divide(self, rows, begin):
        times = self._times(rows)
        later = times[0] >= begin
        return ~later, later

    monkeypatch.setattr(RowSides, "divide", divide)


def windows_of_rows_that_were_received_are_of_the_target(monkeypatch):
    monkeypatch.setattr(SharedShards, "next_begin", lambda self, event_time: event_time or -(2**60))


def flush_of_the_target_reaches_the_primary_copy_of_the_source(monkeypatch):
    monkeypatch.setattr(HandedOver, "aside_of", property(lambda self: self.move.source))


def partials_of_a_source_that_leaves_early_are_dropped(monkeypatch):
    monkeypatch.setattr(HandedOver, "state", lambda self: HandedState([]))


def what_waited_for_the_source_is_dropped(monkeypatch):
    real = Routes.unshare

    def unshare(self, shard, source):
        for piece in real(self, shard, source):
            piece.receipt.rows -= piece.length
            self.shared.added -= piece.length
        return []

    monkeypatch.setattr(Routes, "unshare", unshare)


def records_close_windows_of_both_sides(monkeypatch):
    """A record that waited for the source closes windows of the target, whose rows are behind it, or closed ones."""
    monkeypatch.setattr(routes, "mixed", lambda piece: piece)
    monkeypatch.setattr(instant_moves, "mixed", lambda piece: piece)


def later_rows_overtake_records_of_the_source(monkeypatch):
    monkeypatch.setattr(instant_moves, "closes", lambda piece: False)
    monkeypatch.setattr(Routes, "is_closing", lambda self, task, shard: False)


def source_leaves_before_its_windows_close_without_a_label(monkeypatch):
    """The state of the source is complete only behind its label."""
    real = InstantMoves._send_label

    def send(self, move):
        return [] if move.smooth else real(self, move)

    monkeypatch.setattr(InstantMoves, "_send_label", send)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    # Of these scenarios, only `OVERTAKEN` chooses.
    chosen_in_turn(monkeypatch)
    first = [SmoothScenario(seed) for seed in TRIED_FIRST]
    for scenario in [*first, FOUND[0], OVERTAKEN, *map(SmoothScenario, range(MOST_SEEDS))]:
        if scenario.fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

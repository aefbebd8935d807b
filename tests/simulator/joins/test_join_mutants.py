"""Mutants of joins: the checks must find each injected fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from join_scenario import JoinScenario

from dask_elastic.executor.joins import arrivals, interval_join
from dask_elastic.executor.joins.asof_join import AsOfJoin
from dask_elastic.executor.joins.due_rows import DueRows
from dask_elastic.executor.joins.interval_join import IntervalJoin
from dask_elastic.executor.joins.row_buffer import RowBuffer
from dask_elastic.executor.joins.sorted_rows import SortedRows
from dask_elastic.state.joins.layout import NUMBER
from dask_elastic.state.slots import EMPTY, LIVE
from dask_elastic.topology.joins.joining import Joining

MOST_SEEDS = 20

TRIED_FIRST = (
    JoinScenario(36),
    JoinScenario(37),
    JoinScenario(26),
    JoinScenario(11, outages=0.0),
    JoinScenario(714),
    JoinScenario(14),
)
"""Shards that move back and forth, losses, and ties find what most others do not."""


def row_is_removed_one_watermark_early(monkeypatch):
    """A row is removed by the watermark at which the last row that matches it may still come."""
    real = DueRows.pop
    monkeypatch.setattr(DueRows, "pop", lambda self, before, chosen: real(self, before + 1, chosen))


def matched_row_is_emitted_as_unmatched(monkeypatch):
    monkeypatch.setattr(IntervalJoin, "_match", lambda self, arrays, slots: None)


def match_of_a_buffered_row_is_not_flushed(monkeypatch):
    """Only the row that has arrived counts as changed."""
    real = IntervalJoin._match

    def match(self, arrays, slots):
        marks = arrays.marks[slots].copy()
        real(self, arrays, slots)
        arrays.marks[slots] = marks

    monkeypatch.setattr(IntervalJoin, "_match", match)


def removed_row_leaves_no_tombstone(monkeypatch):
    def remove(self, arrays, slots):
        arrays.reset(slots, EMPTY)

    monkeypatch.setattr(RowBuffer, "remove", remove)


def removed_row_stays_in_the_state(monkeypatch):
    """A row leaves the index of its task only, so that it is emitted again after a move or a loss."""
    monkeypatch.setattr(RowBuffer, "remove", lambda self, arrays, slots: None)


def numbers_of_rows_begin_again_after_a_loss(monkeypatch):
    """The mark of a shard does not count as changed, so that new rows replace buffered ones."""
    real = RowBuffer.count

    def count(self, arrays, *counts):
        slots = self.marks[np.flatnonzero(sum(counts))]
        marks = arrays.marks[slots].copy()
        real(self, arrays, *counts)
        arrays.marks[slots] = marks

    monkeypatch.setattr(RowBuffer, "count", count)


def numbers_of_rows_repeat(monkeypatch):
    monkeypatch.setattr(arrivals, "ranks", lambda shards, count: np.zeros(len(shards), np.int64))


def late_rows_are_joined(monkeypatch):
    """The watermark of a shard is not kept."""
    monkeypatch.setattr(RowBuffer, "reached", lambda self, arrays, shards, time: None)


def watermark_of_a_shard_is_not_flushed(monkeypatch):
    """After a loss late rows are joined."""
    real = RowBuffer.reached

    def reached(self, arrays, shards, time):
        slots = self.marks[shards]
        marks = arrays.marks[slots].copy()
        real(self, arrays, shards, time)
        arrays.marks[slots] = marks

    monkeypatch.setattr(RowBuffer, "reached", reached)


def rows_of_a_moved_shard_are_not_found(monkeypatch):
    """The index of a task does not follow its shards."""
    real = RowBuffer._synchronise

    def synchronise(self):
        if self._version is not None:
            self._version = self.store.owner_version
        real(self)

    monkeypatch.setattr(RowBuffer, "_synchronise", synchronise)


def shard_that_returns_is_taken_as_unchanged(monkeypatch):
    """The index notices shards that have left, not those that have been elsewhere meanwhile."""
    real = RowBuffer._synchronise

    def synchronise(self):
        self._changes = self.store.changes.copy()
        real(self)

    monkeypatch.setattr(RowBuffer, "_synchronise", synchronise)


def index_outlives_the_numbers_of_slots(monkeypatch):
    """The index is not built again when the store has been packed."""
    real = RowBuffer._synchronise

    def synchronise(self):
        if self._numbering is not None:
            self._numbering = self.store.layout
        real(self)

    monkeypatch.setattr(RowBuffer, "_synchronise", synchronise)


def pair_within_a_batch_is_found_from_both_sides(monkeypatch):
    real = IntervalJoin._pairs

    def pairs(self, arrays, rows, slots):
        return real(self, arrays, rows._replace(first=rows.first + 2**40), slots)

    monkeypatch.setattr(IntervalJoin, "_pairs", pairs)


def pair_within_a_batch_is_not_found(monkeypatch):
    real = IntervalJoin._verified

    def verified(self, arrays, rows, found, partners):
        old = arrays.values[NUMBER].take(partners) < rows.first[found]
        return real(self, arrays, rows, found[old], partners[old])

    monkeypatch.setattr(IntervalJoin, "_verified", verified)


def bound_is_exclusive(monkeypatch):
    real = SortedRows.between
    monkeypatch.setattr(SortedRows, "between", lambda self, hashes, low, high: real(self, hashes, low, high - 1))


def run_is_lost_when_runs_are_joined(monkeypatch):
    real = SortedRows.add

    def add(self, hashes, times, slots, described):
        real(self, hashes, times, slots, lambda both: described(both[: len(slots)]))

    monkeypatch.setattr(SortedRows, "add", add)


def record_removes_rows_of_paused_shards(monkeypatch):
    """A record removes the rows of all shards of the task, not only of those that it is addressed to."""
    real = RowBuffer.in_shards
    monkeypatch.setattr(RowBuffer, "in_shards", lambda self, shards: real(self, np.arange(self.space.shards)))


def watermark_is_not_delayed(monkeypatch):
    """Rows without a match leave behind a watermark that is later than they are."""
    monkeypatch.setattr(Joining, "delay", 0)


def null_keys_are_equal(monkeypatch):
    real = arrivals.judge

    def judge(joining, *rest):
        return real(replace(joining, nulls_equal=True), *rest)

    monkeypatch.setattr(interval_join, "judge", judge)


def newest_right_row_is_not_kept(monkeypatch):
    monkeypatch.setattr(AsOfJoin, "_keep_newest", lambda self, arrays, due, pending: None)


def newest_right_row_is_not_flushed(monkeypatch):
    real = AsOfJoin._keep_newest

    def keep(self, arrays, due, pending):
        real(self, arrays, due, pending)
        arrays.marks[pending.written_to] = LIVE

    monkeypatch.setattr(AsOfJoin, "_keep_newest", keep)


def tolerance_is_not_checked(monkeypatch):
    real = AsOfJoin._joined

    def joined(self, arrays, due, pending):
        before, self.joining = self.joining, replace(self.joining, tolerance=None)
        try:
            return real(self, arrays, due, pending)
        finally:
            self.joining = before

    monkeypatch.setattr(AsOfJoin, "_joined", joined)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_of_joins_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for scenario in (JoinScenario(0), *TRIED_FIRST, *map(JoinScenario, range(1, MOST_SEEDS))):
        if scenario.fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

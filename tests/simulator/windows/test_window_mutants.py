"""Mutants of windows: the checks must find each injected fault."""

from __future__ import annotations

import numpy as np
import pytest
from window_scenario import WindowScenario

from dask_elastic.executor.control_records.state_records import Grid, StateRecords
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.piece import Replay
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.task_queue import TaskQueue, Work
from dask_elastic.executor.windows import bound_windows, known_cells
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.complete_instances import CompleteInstances
from dask_elastic.executor.windows.partials import Partials
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing import part_identity
from dask_elastic.simulator.checkpoints import ExecutorCut
from dask_elastic.state.slot_search import SlotSearch

MOST_SEEDS = 100

TRIED_FIRST = (2, 50, 45, 13, 27)
"""Seeds in which replays find what most others do not."""


def window_closes_one_row_early(monkeypatch):
    """A record is put before the last rows that wait in the queue of a task."""
    real = TaskQueue.put

    def put(self, piece):
        real(self, piece)
        if piece.block.record is not None and len(self._items) > 1:
            self._items[-1], self._items[-2] = self._items[-2], self._items[-1]

    monkeypatch.setattr(TaskQueue, "put", put)


def instance_closes_before_its_end(monkeypatch):
    """A watermark closes instances that end one microsecond later."""
    real = WindowLogic.fire

    def fire(self, batch, policy):
        record = batch.record
        return real(self, batch._replace(record=record._replace(event=min(record.event + 1, 2**63 - 1))), policy)

    monkeypatch.setattr(WindowLogic, "fire", fire)


def partial_counts_twice_after_a_loss(monkeypatch):
    """What the primary copy of a shard has is replayed as well."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        left, task.pending.left = task.pending.left, {}
        try:
            yield from list(real(self, task, sent, now))
        finally:
            task.pending.left = left

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def replayed_close_is_loud(monkeypatch):
    """Results that had left before a loss leave again."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        for shard, piece in real(self, task, sent, now):
            yield shard, piece._replace(replay=Replay.LOUD) if sent.work.record else piece

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def slice_is_dropped_too_early(monkeypatch):
    """A slice leaves with the first instance that contains it."""
    monkeypatch.setattr(EventCells, "expired", lambda self, starts, ends, reached: ends <= reached)


def slice_is_never_dropped(monkeypatch):
    monkeypatch.setattr(EventCells, "expired", lambda self, starts, ends, reached: np.zeros(len(starts), np.bool_))


def removed_slice_leaves_no_tombstone(monkeypatch):
    """The removal of slices is not flushed."""
    real = SlotSearch.remove

    def remove(self, matching, shards):
        tracked, self._store.track_dirty = self._store.track_dirty, False
        try:
            return real(self, matching, shards)
        finally:
            self._store.track_dirty = tracked

    monkeypatch.setattr(SlotSearch, "remove", remove)


def slices_of_other_shards_are_closed_as_well(monkeypatch):
    """A record closes instances in all shards of the task, not only in those that it is addressed to."""
    real = SlotSearch._matching
    monkeypatch.setattr(SlotSearch, "_matching", lambda self, matching, shards: real(self, matching, shards | True))


def rows_are_late_by_the_time_of_processing(monkeypatch):
    """Rows are compared with the newest event time of the executor, not with that at their arrival."""
    real = ElasticExecutor.take

    def take(self, task, now=0.0):
        found = real(self, task, now)
        if found is not None and isinstance(found[1], Work) and found[1].record is None:
            for piece in found[1].pieces:
                piece.receipt.reached = self.store.event_time
        return found

    monkeypatch.setattr(ElasticExecutor, "take", take)


def rows_before_and_behind_a_record_are_joined(monkeypatch):
    """A shard that moves brings rows along; they are joined with others that arrived behind a record."""
    real = TaskQueue.take

    def take(self, limit):
        reached = [piece.receipt.reached for piece in self.pieces]
        if self._items and not self.has_control and len(set(reached)) > 1:
            for piece in self.pieces:
                if piece.block.record is None:
                    piece.receipt.reached = reached[0]
        return real(self, limit)

    monkeypatch.setattr(TaskQueue, "take", take)


def watermark_leaves_before_the_results(monkeypatch):
    """A record does not keep the span of its watermark open."""
    real = ElasticExecutor._enter

    def enter(self, record, now):
        instructions = real(self, record, now)
        if record is not None:
            for task in self.routes.tasks.values():
                for piece in task.queue.pieces:
                    if piece.block.record is record:
                        Watermarks.settled(piece.receipt.span)
                        piece.receipt.span = None
        return instructions

    monkeypatch.setattr(ElasticExecutor, "_enter", enter)


def correction_repeats_the_revision_before(monkeypatch):
    real = bound_windows.BoundWindows.batch

    def batch(self, keys, starts, ends, values, revision):
        return real(self, keys, starts, ends, values, np.minimum(revision, 0))

    monkeypatch.setattr(bound_windows.BoundWindows, "batch", batch)


def last_record_does_not_close(monkeypatch):
    monkeypatch.setattr(StateRecords, "ended", lambda self: None)


def lateness_is_not_allowed_for(monkeypatch):
    """State of instances leaves when they close, so that corrections begin again."""
    real = EventCells.expired

    def expired(self, starts, ends, reached):
        return ends <= reached if not self.merges else real(self, starts, ends, reached)

    monkeypatch.setattr(EventCells, "expired", expired)


def restart_forgets_the_event_time(monkeypatch):
    """What was closed before a checkpoint takes rows again, and is closed again."""
    real = ExecutorCut.__init__

    def init(self, state, changes, input_schema, event_time=None):
        real(self, state, changes, input_schema, None)

    monkeypatch.setattr(ExecutorCut, "__init__", init)


def records_skip_the_end_of_the_lateness(monkeypatch):
    """Records are made only where instances end."""
    real = EventCells.__init__

    def init(self, windowing):
        real(self, windowing)
        self.grid = Grid(self.slice * 2, self.offset)

    monkeypatch.setattr(EventCells, "__init__", init)


def slices_are_merged_in_any_order_of_keys(monkeypatch):
    """Partials of one key are merged into the result of the next one, where a key has fewer slices."""
    real = Partials.merged

    def merged(self, groups, start, stop):
        if len(groups.lengths) > 1 and groups.lengths.min() < groups.lengths.max():
            return real(self, groups._replace(lengths=np.roll(groups.lengths, 1)), start, stop)
        return real(self, groups, start, stop)

    monkeypatch.setattr(Partials, "merged", merged)


def slices_of_one_key_share_an_identity(monkeypatch):
    """The identity does not depend on the slice."""
    real, checks = part_identity.part_hashes, part_identity.part_checks
    monkeypatch.setattr(known_cells, "part_hashes", lambda hashes, salts, groups: real(hashes, 0, groups))
    monkeypatch.setattr(known_cells, "part_checks", lambda found, salts, count: checks(found, 0, count))


def late_row_is_not_in_instances_of_shorter_ones(monkeypatch):
    """A row that is late for a short window, but not for a longer one, leaves the result of the short one in this."""
    monkeypatch.setattr(CompleteInstances, "changed", lambda self, earliest: None)


def complete_instance_lacks_its_last_slice(monkeypatch):
    """Longer windows take a shorter one for a slice more than it has."""
    real = CompleteInstances.keep

    def keep(self, begin, end, merged, keys):
        real(self, begin, end + 1, merged, keys)

    monkeypatch.setattr(CompleteInstances, "keep", keep)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        if WindowScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

"""Mutants of state records and timers: the checks must find each injected fault."""

from __future__ import annotations

import numpy as np
import pytest
from timer_scenario import TimerScenario

from dask_elastic.executor.control_records.state_records import StateRecords
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.piece import Piece, Replay
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import TaskQueue
from dask_elastic.executor.timer_logic import TimerLogic
from dask_elastic.state.session import Session
from dask_elastic.state.slots import LIVE
from dask_elastic.state.timer_bounds import TimerBounds

MOST_SEEDS = 100

TRIED_FIRST = (13, 27, 39, 9)
"""Seeds in which replays, moves back and forth and the end find what most others do not."""


def record_overtakes_rows_in_queue(monkeypatch):
    """A record goes to the head of a task's queue, as labels do."""
    real = TaskQueue.put

    def put(self, piece):
        real(self, piece)
        if piece.block.record is not None:
            self._items.appendleft(self._items.pop())

    monkeypatch.setattr(TaskQueue, "put", put)


def record_overtakes_waiting_rows(monkeypatch):
    """A record is put before the rows that wait for a paused shard."""
    real = Routes.enqueue

    def enqueue(self, block, receipt):
        before = {shard: len(pieces) for shard, pieces in self.waiting.items()}
        wakes = real(self, block, receipt)
        for shard, pieces in self.waiting.items() if block.record is not None else ():
            pieces.rotate(len(pieces) - before[shard])
        return wakes

    monkeypatch.setattr(Routes, "enqueue", enqueue)


def record_is_lost_when_a_queue_is_cut(monkeypatch):
    """The rows of a record stay with the task whose shard moves away, and are settled there."""
    real = Piece.without

    def without(self, shard):
        return ([self], None) if self.block.record is not None else real(self, shard)

    monkeypatch.setattr(Piece, "without", without)


def record_turns_into_rows_when_it_is_sorted(monkeypatch):
    real = Piece.sorted

    def sorted_(self, space, table):
        return real(self, space, table)._replace(block=real(self, space, table).block._replace(record=None))

    monkeypatch.setattr(Piece, "sorted", sorted_)


def records_are_coalesced(monkeypatch):
    """Only every second watermark fires timers; the end fires the others."""
    real = StateRecords.reached

    def reached(self, event_time):
        made = real(self, event_time)
        return made if made is None or made.event % 2 else None

    monkeypatch.setattr(StateRecords, "reached", reached)


def watermark_leaves_before_the_timers_outputs(monkeypatch):
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


def replayed_record_is_loud(monkeypatch):
    """The outputs of a record that had left before the loss leave again."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        for shard, piece in real(self, task, sent, now):
            yield shard, piece._replace(replay=Replay.LOUD) if sent.work.record else piece

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def record_is_not_replayed(monkeypatch):
    """A lost task's records that were settled count as flushed."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        return iter(()) if sent.work.record is not None and sent.settled else real(self, task, sent, now)

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def settled_record_is_replayed_as_rows(monkeypatch):
    real = Recovery._settled_piece

    def settled_piece(self, sent, now):
        piece = real(self, sent, now)
        return piece._replace(block=piece.block._replace(record=None))

    monkeypatch.setattr(Recovery, "_settled_piece", settled_piece)


def records_do_not_delay_a_cut(monkeypatch):
    """A record does not count as work that a cut waits for."""
    real = ElasticExecutor._enter

    def enter(self, record, now):
        instructions = real(self, record, now)
        if record is not None and self.cuts.flush_due(0) is not None:
            instructions += self._flush(-3 - self.cuts.checkpoint)
        return instructions

    def finish(self):
        rows, self._pending_rows = self._pending_rows, self._pending_rows - self.routes.record_rows
        try:
            return real_finish(self)
        finally:
            self._pending_rows = rows

    real_finish = ElasticExecutor._finish
    monkeypatch.setattr(ElasticExecutor, "_enter", enter)
    monkeypatch.setattr(ElasticExecutor, "_finish", finish)


def timers_of_other_shards_fire_as_well(monkeypatch):
    """A record fires the timers of all shards of the task, not only of those that it is addressed to."""
    real = TimerBounds.search

    def search(self, arrays, slots, limits, shards):
        return real(self, arrays, slots, limits, shards | True)

    monkeypatch.setattr(TimerBounds, "search", search)


def bounds_outlive_a_move(monkeypatch):
    """Timers that a shard brings along are not looked for."""
    real = TimerBounds.reached

    def reached(self, limits):
        if self._version is not None:
            self._version = self._owners.owner_version
        return real(self, limits)

    monkeypatch.setattr(TimerBounds, "reached", reached)


def deletion_of_a_timer_is_not_flushed(monkeypatch):
    """Clearing a timer does not mark its key as changed."""
    real = TimerLogic._clear

    def clear(self, located, chosen):
        slots, marks = self._store.slots, self._store.slots.marks.copy()
        real(self, located, chosen)
        slots.marks[located.slots] = marks[located.slots]

    def call(self, name, candidates, positions, times, now, policy):
        keys = candidates.chosen(np.isin(np.arange(candidates.keys.num_rows), positions))
        slots = self._located(keys).slots
        marks = self._store.slots.marks[slots].copy()
        outputs = real_call(self, name, candidates, positions, times, now, policy)
        self._store.slots.marks[slots] = marks
        return outputs

    real_call = TimerLogic._call
    monkeypatch.setattr(TimerLogic, "_clear", clear)
    monkeypatch.setattr(TimerLogic, "_call", call)


def deleted_key_leaves_no_tombstone(monkeypatch):
    """The removal of a key without state is not tracked."""
    real = Session.prune

    def prune(self, located, remaining_of, now):
        deleted = real(self, located, remaining_of, now)
        marks = self._store.slots.marks
        empty = located.slots[(marks[located.slots] & LIVE) == 0]
        marks[empty] = 0
        return deleted

    monkeypatch.setattr(Session, "prune", prune)


def timer_fires_at_the_end_again(monkeypatch):
    """A timer is not cleared when it fires at the end of the input."""
    real = TimerLogic._tidy
    monkeypatch.setattr(TimerLogic, "_tidy", lambda self, candidates, now, drop: real(self, candidates, now, []))


def record_of_the_end_is_missing(monkeypatch):
    monkeypatch.setattr(StateRecords, "ended", lambda self: None)


def receipt_of_a_record_is_settled_by_its_first_shard(monkeypatch):
    real = ElasticExecutor._receipts

    def receipts(work):
        for piece in work.pieces if work.record is not None else ():
            piece.receipt.rows = piece.length
        return real(work)

    monkeypatch.setattr(ElasticExecutor, "_receipts", staticmethod(receipts))


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [0, 1, 2, *TRIED_FIRST, *range(MOST_SEEDS)]:
        if TimerScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")

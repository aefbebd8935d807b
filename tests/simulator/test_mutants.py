"""Mutants of moves and the data path: the checks must find each injected fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from scenario import first_failure

from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.moves import Moves
from dask_elastic.executor.piece import Piece
from dask_elastic.executor.remote import RemotePart
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import TaskQueue
from dask_elastic.migration.labelled import LabelledMove, MoveEvent
from dask_elastic.simulator.network import Channel
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab import messages as m

MOST_SEEDS = 60


def label_is_skipped(monkeypatch):
    """The shard moves at once, although the source has not processed the rows that it took."""
    real = Moves.begin

    def begin(self, shard, target, now):
        wakes = real(self, shard, target, now)
        move = self.by_shard.get(shard)
        if move is None or not move.paused or not self.routes.tasks[move.source].at_home:
            return wakes
        self.routes.tasks[move.source].queue._items.popleft()
        return wakes + self.label_returned(move.source, shard, now)

    monkeypatch.setattr(Moves, "begin", begin)


def label_does_not_flush(monkeypatch):
    """The last changes of a remote task do not reach the primary copy before the shard moves."""
    real = RemotePart._label
    monkeypatch.setattr(RemotePart, "_label", lambda self, *label: replace(real(self, *label), state=None))


def flush_forgets(monkeypatch):
    """A flush clears the dirty marks but carries no state."""
    real = RemotePart._flush

    def flush(self, number, token):
        sent = real(self, number, token)
        return m.Flush(sent.task, sent.through, None, token)

    monkeypatch.setattr(RemotePart, "_flush", flush)


def rows_are_released_early(monkeypatch):
    """The waiting rows are released before the routing table changes."""
    real = Routes.resume

    def resume(self, shard, target):
        waiting = self.waiting[shard]
        while waiting:
            self.tasks[int(self.table.owner[shard])].queue.put(waiting.popleft())
        return real(self, shard, target)

    monkeypatch.setattr(Routes, "resume", resume)


def rows_are_released_in_reverse(monkeypatch):
    real = Routes.resume

    def resume(self, shard, target):
        self.waiting[shard].reverse()
        return real(self, shard, target)

    monkeypatch.setattr(Routes, "resume", resume)


def piece_is_dropped(monkeypatch):
    """Extracting a shard from a queue loses its last piece."""
    real = TaskQueue.extract
    monkeypatch.setattr(TaskQueue, "extract", lambda self, *given: real(self, *given)[:-1])


def piece_is_duplicated(monkeypatch):
    """Rows extracted from a queue also stay in it."""
    real = Piece.without

    def without(self, shard):
        stays, moved = real(self, shard)
        return ([self] if moved is not None else stays), moved

    monkeypatch.setattr(Piece, "without", without)


def rows_of_paused_shard_stay_queued(monkeypatch):
    """Rows of a paused shard stay in the task's queue, behind the label."""
    monkeypatch.setattr(TaskQueue, "extract", lambda self, *given: [])


def split_version_is_not_checked(monkeypatch):
    """A batch is routed by the table version of its split, although the table has changed."""
    tables = {}
    split, enqueue = Routes.split, Routes.enqueue

    def remember(self, batch):
        block = split(self, batch)
        tables[id(block)] = block, self.table
        return block

    def stale(self, block, receipt):
        now, then = self.table, tables.pop(id(block))[1]
        if then.paused.any() or not set(then.owner.tolist()) <= set(self.tasks):
            return enqueue(self, block, receipt)
        self.table = then
        wakes = enqueue(self, block, receipt)
        self.table = now
        return wakes

    monkeypatch.setattr(Routes, "split", remember)
    monkeypatch.setattr(Routes, "enqueue", stale)


def source_keeps_ownership(monkeypatch):
    monkeypatch.setattr(KeyedStore, "revoke", lambda self, shard: None)


def target_is_not_installed(monkeypatch):
    """A move to another node is handled like one within the node."""
    real = LabelledMove.handle

    def handle(self, event):
        action = real(self, event)
        if event is MoveEvent.LABEL_RETURNED and action.name == "INSTALL":
            return type(action).GRANT
        return action

    monkeypatch.setattr(LabelledMove, "handle", handle)


def messages_are_reordered(monkeypatch):
    """A channel sometimes delivers its last packet first; packet numbers are not checked."""
    chance = random.Random(1)

    def take(self):
        if chance.random() < 0.1:
            return self._packets.pop()[1]
        return self._packets.popleft()[1]

    monkeypatch.setattr(Channel, "take", take)


def credit_is_lost(monkeypatch):
    real = ElasticExecutor._receipts
    monkeypatch.setattr(ElasticExecutor, "_receipts", staticmethod(lambda work: real(work)[1:]))


def outputs_are_lost(monkeypatch):
    real = Emitter.emit
    monkeypatch.setattr(Emitter, "emit", lambda self, *given: real(self, *given)[:1])


def wakes_are_lost(monkeypatch):
    real = ElasticExecutor.done

    def done(self, *given):
        return [i for i in real(self, *given) if type(i).__name__ != "Wake"]

    monkeypatch.setattr(ElasticExecutor, "done", done)


MUTANTS = [
    label_is_skipped,
    label_does_not_flush,
    flush_forgets,
    rows_are_released_early,
    rows_are_released_in_reverse,
    piece_is_dropped,
    piece_is_duplicated,
    rows_of_paused_shard_stay_queued,
    split_version_is_not_checked,
    source_keeps_ownership,
    target_is_not_installed,
    messages_are_reordered,
    credit_is_lost,
    outputs_are_lost,
    wakes_are_lost,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_move_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS, outages=0.0)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]


def test_interleaved_instructions_are_found():
    """Drivers must carry out instructions in the executor's order, on any thread."""
    assert first_failure(MOST_SEEDS, outages=0.0, torn=True) is not None

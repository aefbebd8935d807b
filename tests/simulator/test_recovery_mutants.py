"""Mutants of the recovery of lost tasks: the checks must find each injected fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenario import first_failure

from dask_elastic.executor import events
from dask_elastic.executor.cores import Cores
from dask_elastic.executor.drivers.executor_driver import ExecutorDriver
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.flushes import Flushes
from dask_elastic.executor.link import Link, Links
from dask_elastic.executor.moves import Moves
from dask_elastic.executor.pending import Pending
from dask_elastic.executor.piece import Receipt, Replay
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.remote import RemotePart
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import Work
from dask_elastic.migration.labelled import Action, LabelledMove, MoveEvent, Phase
from dask_elastic.simulator.world import World
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.identity import ExecutorId

MOST_SEEDS = 300

TRIED_FIRST = (93, 64, 41, 10, 30)
"""Seeds that find what hardly any other does."""
SOURCE = ExecutorId("numbers", 0)


def nothing_is_replayed(monkeypatch):
    monkeypatch.setattr(Recovery, "_lacking", lambda *given: iter(()))


def rows_are_replayed_twice(monkeypatch):
    real = Recovery._lacking
    monkeypatch.setattr(Recovery, "_lacking", lambda *given: [*real(*given), *real(*given)])


def settled_rows_are_not_replayed(monkeypatch):
    """Sub-batches whose outputs have left count as flushed."""
    real = Recovery._lacking
    monkeypatch.setattr(
        Recovery, "_lacking", lambda self, task, sent, now: () if sent.settled else real(self, task, sent, now)
    )


def pending_queue_is_trimmed_early(monkeypatch):
    """Settled sub-batches are trimmed before their flush."""
    real = Pending.settle

    def settle(self, number):
        real(self, number)
        while self._sent and self._sent[0].settled:
            self.nbytes -= self._sent.popleft().nbytes

    monkeypatch.setattr(Pending, "settle", settle)


def pending_queue_is_not_trimmed(monkeypatch):
    """Flushed sub-batches stay in the pending queue."""

    def trim(self, through):
        self.nbytes = 0

    monkeypatch.setattr(Pending, "trim", trim)


def moved_shards_are_replayed(monkeypatch):
    """The sub-batch number of a label is ignored."""
    monkeypatch.setattr(Pending, "leave", lambda self, shard, through: None)


def flushed_number_of_shard_is_too_high(monkeypatch):
    monkeypatch.setattr(Pending, "lacks", lambda self, shard, number: number - 1 > self.left.get(shard, -1))


def label_of_one_shard_trims_all(monkeypatch):
    """The number of a label is used like that of a flush of the whole task."""
    real = Pending.leave

    def leave(self, shard, through):
        real(self, shard, through)
        self.trim(through)

    monkeypatch.setattr(Pending, "leave", leave)


def outputs_leave_again(monkeypatch):
    monkeypatch.setattr(Work, "silent", False)


def all_replayed_outputs_are_dropped(monkeypatch):
    monkeypatch.setattr(Work, "silent", property(lambda self: self.replay is not Replay.NONE))


def left_outputs_are_not_recorded(monkeypatch):
    """Outputs that left before their sub-batch was settled leave again."""
    monkeypatch.setattr(Links, "leaves", lambda self, outputs: outputs.task in self.routes.tasks)


def new_rows_overtake_replay(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: self.waiting[shard].extend(pieces))


def replay_is_reversed(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: self.waiting[shard].extendleft(pieces))


def silent_mark_is_lost_on_join(monkeypatch):
    """Pieces of a replay lose their silent mark when they are split or joined."""
    real = Work.__init__

    def init(self, pieces):
        real(self, pieces)
        if any(piece.replay is Replay.SILENT for piece in pieces):
            self.replay = Replay.LOUD

    monkeypatch.setattr(Work, "__init__", init)


def new_owner_is_not_installed(monkeypatch):
    """A shard is granted to a task on another node without its state."""
    real = LabelledMove.handle

    def handle(self, event):
        action = real(self, event)
        return Action.GRANT if event is MoveEvent.SOURCE_LOST and action is Action.INSTALL else action

    monkeypatch.setattr(LabelledMove, "handle", handle)


def move_waits_for_label_of_lost_source(monkeypatch):
    """The source of a move is lost, and the move keeps waiting for its label."""
    real = Moves.inherit

    def inherit(self, heirs, now):
        waiting = {s: move for s, move in self.by_shard.items() if s not in heirs and move.phase is Phase.LABELLED}
        for shard in waiting:
            del self.by_shard[shard]
        instructions = real(self, heirs, now)
        self.by_shard |= waiting
        return instructions

    monkeypatch.setattr(Moves, "inherit", inherit)


def loss_completes_flush(monkeypatch):
    def lost(self, tasks):
        for task in tasks:
            for waiting in self._open.values():
                waiting.discard(task)

    monkeypatch.setattr(Flushes, "lost", lost)


def flush_is_not_requested(monkeypatch):
    monkeypatch.setattr(Pending, "request_flush", lambda self: False)


def pending_queue_is_unbounded(monkeypatch):
    monkeypatch.setattr(Pending, "has_room", True)


def fence_at_home_is_open(monkeypatch):
    """Messages of a node that was declared lost, and repeated ones, are admitted."""
    monkeypatch.setattr(Links, "admit", lambda self, node, stamp: True)


def fence_at_remote_is_open(monkeypatch):
    monkeypatch.setattr(RemotePart, "admit", lambda self, stamp: True)


def repeated_messages_are_admitted(monkeypatch):
    monkeypatch.setattr(Link, "admit", lambda self, stamp: stamp.incarnation == self.incarnation)


def stale_flush_changes_primary_copy(monkeypatch):
    """State is installed from any sender."""
    real = ElasticExecutor.take_back

    def take_back(self, message, now):
        if isinstance(message, m.Flush | m.LabelReturned) and message.state is not None:
            self.store.install(message.state)
        return real(self, message, now)

    monkeypatch.setattr(ElasticExecutor, "take_back", take_back)
    monkeypatch.setattr(Links, "admit", lambda self, node, stamp: True)


def stale_tasks_survive_new_incarnation(monkeypatch):
    """A remote node keeps its tasks when the incarnation increases."""
    real = World._receive_message

    def receive(self, node, packet):
        known = self.remotes.get((node, packet.executor))
        if known is not None:
            known.part._link.incarnation = packet.stamp.incarnation
            known.part._link._received = packet.stamp.sequence
        return real(self, node, packet)

    monkeypatch.setattr(World, "_receive_message", receive)


def loss_overtakes_outputs(monkeypatch):
    """A node's loss is handled while the emitter still delivers what came from it."""

    def node_left(self, node, died):
        self.executor.links.cut(node)
        self.host.start("impatient", self.handle(events.NodeLeft(node, died=died)))

    monkeypatch.setattr(ExecutorDriver, "node_left", node_left)


def credit_is_returned_twice(monkeypatch):
    def for_replay(cls, origin, nbytes, batch, now):
        receipt = cls(SOURCE, nbytes, batch.rows.num_rows, batch.stamp, now)
        receipt.settled = True
        return receipt

    monkeypatch.setattr(Receipt, "for_replay", classmethod(for_replay))


def flush_number_is_too_high(monkeypatch):
    """The number of a flush is higher than its state."""
    real = RemotePart._flush

    def flush(self, task, token):
        sent = real(self, task, token)
        return replace(sent, through=sent.through + 1)

    monkeypatch.setattr(RemotePart, "_flush", flush)


def remote_task_sends_silent_outputs(monkeypatch):
    """A remote task sends the outputs of silent work to the home, and they leave."""
    real = RemotePart.processed

    def processed(self, message, deliveries, busy):
        return real(self, replace(message, silent=False), deliveries, busy)

    monkeypatch.setattr(RemotePart, "processed", processed)


def lost_node_gets_cores(monkeypatch):
    real = Cores.set

    def with_the_lost(self, wanted, loads, now):
        lost, self.lost_nodes = self.lost_nodes, set()
        instructions = real(self, wanted, loads, now)
        self.lost_nodes = lost
        return instructions

    monkeypatch.setattr(Cores, "set", with_the_lost)


def end_does_not_wait_for_replay(monkeypatch):
    real = Recovery.lose

    def lose(self, *given):
        real(self, *given)
        return 0

    monkeypatch.setattr(Recovery, "lose", lose)


MUTANTS = [
    nothing_is_replayed,
    rows_are_replayed_twice,
    settled_rows_are_not_replayed,
    pending_queue_is_trimmed_early,
    pending_queue_is_not_trimmed,
    moved_shards_are_replayed,
    flushed_number_of_shard_is_too_high,
    label_of_one_shard_trims_all,
    outputs_leave_again,
    all_replayed_outputs_are_dropped,
    left_outputs_are_not_recorded,
    new_rows_overtake_replay,
    replay_is_reversed,
    silent_mark_is_lost_on_join,
    new_owner_is_not_installed,
    move_waits_for_label_of_lost_source,
    loss_completes_flush,
    flush_is_not_requested,
    pending_queue_is_unbounded,
    fence_at_home_is_open,
    fence_at_remote_is_open,
    repeated_messages_are_admitted,
    stale_flush_changes_primary_copy,
    stale_tasks_survive_new_incarnation,
    loss_overtakes_outputs,
    credit_is_returned_twice,
    flush_number_is_too_high,
    remote_task_sends_silent_outputs,
    lost_node_gets_cores,
    end_does_not_wait_for_replay,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_recovery_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS, TRIED_FIRST)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]

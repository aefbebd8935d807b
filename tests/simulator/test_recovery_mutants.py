"""Faults put into the recovery of lost tasks on purpose: the checks must see each of them."""

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
SOURCE = ExecutorId("numbers", 0)


def the_replay_is_forgotten(monkeypatch):
    monkeypatch.setattr(Recovery, "_lacking", lambda *given: iter(()))


def the_replay_is_doubled(monkeypatch):
    real = Recovery._lacking
    monkeypatch.setattr(Recovery, "_lacking", lambda *given: [*real(*given), *real(*given)])


def what_was_done_is_not_done_again(monkeypatch):
    """Sub-batches whose outputs have left are taken for flushed."""
    real = Recovery._lacking
    monkeypatch.setattr(
        Recovery, "_lacking", lambda self, task, sent, now: () if sent.settled else real(self, task, sent, now)
    )


def the_queue_is_trimmed_too_early(monkeypatch):
    """What is done is trimmed, flushed or not."""
    real = Pending.settle

    def settle(self, number):
        real(self, number)
        while self._sent and self._sent[0].settled:
            self.nbytes -= self._sent.popleft().nbytes

    monkeypatch.setattr(Pending, "settle", settle)


def the_queue_is_not_trimmed(monkeypatch):
    """The primary copy has it, and the pending queue still."""

    def trim(self, through):
        self.nbytes = 0

    monkeypatch.setattr(Pending, "trim", trim)


def shards_that_left_are_replayed(monkeypatch):
    """A label does not say up to which sub-batch the primary copy of its shard is."""
    monkeypatch.setattr(Pending, "leave", lambda self, shard, through: None)


def a_shard_counts_as_flushed_too_far(monkeypatch):
    monkeypatch.setattr(Pending, "lacks", lambda self, shard, number: number - 1 > self.left.get(shard, -1))


def one_label_counts_for_all_shards(monkeypatch):
    """The number of a label is taken for that of a flush of the whole task."""
    real = Pending.leave

    def leave(self, shard, through):
        real(self, shard, through)
        self.trim(through)

    monkeypatch.setattr(Pending, "leave", leave)


def outputs_leave_again(monkeypatch):
    monkeypatch.setattr(Work, "silent", False)


def outputs_of_the_replay_are_lost(monkeypatch):
    monkeypatch.setattr(Work, "silent", property(lambda self: self.replay is not Replay.NONE))


def what_left_is_not_noted(monkeypatch):
    """Outputs that left before their sub-batch was settled leave again."""
    monkeypatch.setattr(Links, "leaves", lambda self, outputs: outputs.task in self.routes.tasks)


def new_rows_overtake_the_replay(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: self.waiting[shard].extend(pieces))


def the_replay_is_reversed(monkeypatch):
    monkeypatch.setattr(Routes, "put_back", lambda self, shard, pieces: self.waiting[shard].extendleft(pieces))


def what_leaves_is_joined_with_what_left(monkeypatch):
    """Pieces of a replay forget what became of their outputs when they are cut or joined."""
    real = Work.__init__

    def init(self, pieces):
        real(self, pieces)
        if any(piece.replay is Replay.SILENT for piece in pieces):
            self.replay = Replay.LOUD

    monkeypatch.setattr(Work, "__init__", init)


def the_heir_is_not_installed(monkeypatch):
    """A shard goes to a task on another node as if its state were there."""
    real = LabelledMove.handle

    def handle(self, event):
        action = real(self, event)
        return Action.GRANT if event is MoveEvent.SOURCE_LOST and action is Action.INSTALL else action

    monkeypatch.setattr(LabelledMove, "handle", handle)


def a_label_is_waited_for_in_vain(monkeypatch):
    """The source of a move is lost, and the move waits for its label."""
    real = Moves.inherit

    def inherit(self, heirs, now):
        waiting = {s: move for s, move in self.active.items() if s not in heirs and move.phase is Phase.LABELLED}
        for shard in waiting:
            del self.active[shard]
        instructions = real(self, heirs, now)
        self.active |= waiting
        return instructions

    monkeypatch.setattr(Moves, "inherit", inherit)


def a_loss_fulfils_a_flush(monkeypatch):
    def lost(self, tasks):
        for task in tasks:
            for waiting in self._open.values():
                waiting.discard(task)

    monkeypatch.setattr(Flushes, "lost", lost)


def nobody_asks_for_a_flush(monkeypatch):
    monkeypatch.setattr(Pending, "ask", lambda self: False)


def the_pending_queue_is_not_bounded(monkeypatch):
    monkeypatch.setattr(Pending, "has_room", True)


def the_fence_at_home_is_open(monkeypatch):
    """Whatever comes from a node that was given up, or comes again, is taken."""
    monkeypatch.setattr(Links, "admit", lambda self, node, stamp: True)


def the_fence_at_the_remote_is_open(monkeypatch):
    monkeypatch.setattr(RemotePart, "admit", lambda self, stamp: True)


def what_comes_twice_passes(monkeypatch):
    monkeypatch.setattr(Link, "admit", lambda self, stamp: stamp.incarnation == self.incarnation)


def a_zombie_flushes_into_the_primary_copy(monkeypatch):
    """State is taken whoever sends it."""
    real = ElasticExecutor.take_back

    def take_back(self, message, now):
        if isinstance(message, m.Flush | m.LabelReturned) and message.state is not None:
            self.store.install(message.state)
        return real(self, message, now)

    monkeypatch.setattr(ElasticExecutor, "take_back", take_back)
    monkeypatch.setattr(Links, "admit", lambda self, node, stamp: True)


def a_zombie_goes_on_in_the_next_life(monkeypatch):
    """A remote node does not begin anew when its home does."""
    real = World._receive_message

    def receive(self, node, packet):
        known = self.remotes.get((node, packet.executor))
        if known is not None:
            known.part._link.incarnation = packet.stamp.incarnation
            known.part._link._received = packet.stamp.sequence
        return real(self, node, packet)

    monkeypatch.setattr(World, "_receive_message", receive)


def the_loss_overtakes_outputs(monkeypatch):
    """A node's loss is handled while the emitter still delivers what came from it."""

    def node_left(self, node, died):
        self.executor.links.cut(node)
        self.host.start("impatient", self.handle(events.NodeGone(node, died=died)))

    monkeypatch.setattr(ExecutorDriver, "node_left", node_left)


def credit_comes_back_twice(monkeypatch):
    def for_replay(cls, origin, nbytes, rows, stamp, now):
        receipt = cls(SOURCE, nbytes, rows, stamp, now)
        receipt.settled = True
        return receipt

    monkeypatch.setattr(Receipt, "for_replay", classmethod(for_replay))


def the_number_of_a_flush_is_too_high(monkeypatch):
    """A flush says more than its state contains."""
    real = RemotePart._flush

    def flush(self, task, token):
        sent = real(self, task, token)
        return replace(sent, through=sent.through + 1)

    monkeypatch.setattr(RemotePart, "_flush", flush)


def a_remote_task_does_not_know_what_left(monkeypatch):
    """Outputs that left already are sent home by the task that does the work again, and leave."""
    real = RemotePart.processed

    def processed(self, message, deliveries, busy):
        return real(self, replace(message, silent=False), deliveries, busy)

    monkeypatch.setattr(RemotePart, "processed", processed)


def cores_are_given_on_a_lost_node(monkeypatch):
    real = Cores.set

    def with_the_lost(self, wanted, loads, now):
        gone, self.gone = self.gone, set()
        instructions = real(self, wanted, loads, now)
        self.gone = gone
        return instructions

    monkeypatch.setattr(Cores, "set", with_the_lost)


def the_end_does_not_wait_for_the_replay(monkeypatch):
    real = Recovery.lose

    def lose(self, *given):
        real(self, *given)
        return 0

    monkeypatch.setattr(Recovery, "lose", lose)


MUTANTS = [
    the_replay_is_forgotten,
    the_replay_is_doubled,
    what_was_done_is_not_done_again,
    the_queue_is_trimmed_too_early,
    the_queue_is_not_trimmed,
    shards_that_left_are_replayed,
    a_shard_counts_as_flushed_too_far,
    one_label_counts_for_all_shards,
    outputs_leave_again,
    outputs_of_the_replay_are_lost,
    what_left_is_not_noted,
    new_rows_overtake_the_replay,
    the_replay_is_reversed,
    what_leaves_is_joined_with_what_left,
    the_heir_is_not_installed,
    a_label_is_waited_for_in_vain,
    a_loss_fulfils_a_flush,
    nobody_asks_for_a_flush,
    the_pending_queue_is_not_bounded,
    the_fence_at_home_is_open,
    the_fence_at_the_remote_is_open,
    what_comes_twice_passes,
    a_zombie_flushes_into_the_primary_copy,
    a_zombie_goes_on_in_the_next_life,
    the_loss_overtakes_outputs,
    credit_comes_back_twice,
    the_number_of_a_flush_is_too_high,
    a_remote_task_does_not_know_what_left,
    cores_are_given_on_a_lost_node,
    the_end_does_not_wait_for_the_replay,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_fault_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]

"""Mutants in which two threads of one node come between two statements: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from racing import Race, first_failed_race

from dask_elastic.executor.drivers.remote_driver import RemoteDriver
from dask_elastic.executor.remote import RemotePart
from dask_elastic.simulator.remote_fibers import RemoteFibers
from dask_elastic.vocab import messages as m

MOST_SEEDS = 30


def installed_shard_is_still_dropped(monkeypatch):
    """A shard that returns before its old state was dropped loses its new state."""
    real = RemotePart.control

    def control(self, message):
        leaving = set(self._leaving)
        sent = real(self, message)
        if isinstance(message, m.Install):
            self._leaving |= leaving
        return sent

    monkeypatch.setattr(RemotePart, "control", control)


def shard_is_dropped_beside_its_installation(monkeypatch):
    """Between choosing the shards to drop and dropping them, one of them is installed again."""

    def settle(self):
        leaving = set(self._leaving)
        self._leaving.clear()
        yield None
        self.store.drop(leaving)

    monkeypatch.setattr(RemotePart, "settle", settle)


def shard_is_marked_for_dropping_after_its_label(monkeypatch):
    """Between sending the label and marking the shard, the shard is installed again."""
    label, settle = RemotePart._label, RemotePart.settle
    late = {}

    def keep(self, task, shard, stays):
        if not stays:
            late.setdefault(self, set()).add(shard)
        return label(self, task, shard, True)

    def mark(self):
        self._leaving |= late.pop(self, set())
        settle(self)

    monkeypatch.setattr(RemotePart, "_label", keep)
    monkeypatch.setattr(RemotePart, "settle", mark)


def shard_is_revoked_after_its_label(monkeypatch):
    """Between sending the label and revoking the shard, another task gets the shard."""
    settle = RemotePart.settle
    late = []

    def label(self, task, shard, stays):
        late.append((self, shard, task.number))
        return m.LabelReturned(task.number, shard, task.processed, self.store.extract([shard], dirty_only=True))

    def revoke(self):
        for part, shard, task in [entry for entry in late if entry[0] is self]:
            if self.store.owner[shard] == task:
                self.store.revoke(shard)
            late.remove((part, shard, task))
        settle(self)

    monkeypatch.setattr(RemotePart, "_label", label)
    monkeypatch.setattr(RemotePart, "settle", revoke)


def remote_messages_are_stamped_before_others_are_sent(monkeypatch):
    """Between stamping and sending, another thread sends a message with a later stamp."""

    def send(self, messages):
        stamped = [(self.part.stamp(), message) for message in messages]
        yield None
        for stamp, message in stamped:
            self.world.send_message(self.node, self.home, self.part.identity, stamp, message)
        return True

    monkeypatch.setattr(RemoteFibers, "send", send)


def remote_message_is_run_beside_the_task(monkeypatch):
    """The thread that brings a message runs the task, although the task's own thread runs."""
    real = RemotePart.receive

    def receive(self, message, now=0.0):
        return real(self, message, now) or not isinstance(message, m.StartTask)

    monkeypatch.setattr(RemotePart, "receive", receive)


def inline_message_leaves_the_task_awake(monkeypatch):
    """The thread that brings a message does not look for others, which arrive in between and wake nothing."""

    def receive(self, message):
        woken = self.part.receive(message, self.host.now())
        if isinstance(message, m.StartTask):
            self._bells[message.task] = self.host.bell()
            self.host.start(f"remote-{message.task}", self._run_task(message.task))
        elif woken:
            yield from self._carry_out(self.part.take(message.task, self.host.now()))

    monkeypatch.setattr(RemoteDriver, "receive", receive)


MUTANTS = [
    installed_shard_is_still_dropped,
    shard_is_dropped_beside_its_installation,
    shard_is_marked_for_dropping_after_its_label,
    shard_is_revoked_after_its_label,
    remote_messages_are_stamped_before_others_are_sent,
    remote_message_is_run_beside_the_task,
    inline_message_leaves_the_task_awake,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_thread_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failed_race(MOST_SEEDS)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]


@pytest.mark.parametrize("outages", [0.0, 0.3])
def test_invariants_hold_while_threads_race(outages):
    for seed in range(10):
        Race(seed, outages=outages).check()

"""Mutants of the driver that runtime and simulator share: the checks must find each injected fault."""

from __future__ import annotations

from functools import partial

import pytest
from scenario import first_failure

from dask_elastic.executor import events
from dask_elastic.executor.drivers.executor_driver import ExecutorDriver
from dask_elastic.executor.drivers.remote_driver import RemoteDriver
from dask_elastic.executor.task_queue import Work
from dask_elastic.vocab import messages as m

MOST_SEEDS = 300


def messages_overtake_outputs(monkeypatch):
    """Only outputs queue for the emitter; a label or a flush behind them is applied at once."""
    real = ExecutorDriver.receive

    def receive(self, message):
        if isinstance(message, m.Outputs):
            return real(self, message)
        return self._take_back(message)

    monkeypatch.setattr(ExecutorDriver, "receive", receive)


def link_is_cut_late(monkeypatch):
    """Messages that a node sends between its loss and the handling of the loss are admitted."""

    def node_left(self, node, died):
        self._behind_outputs(events.NodeLeft(node, died=died))

    real = ExecutorDriver.handle

    def handle(self, event):
        if isinstance(event, events.NodeLeft):
            self.executor.links.cut(event.node)
        return real(self, event)

    monkeypatch.setattr(ExecutorDriver, "node_left", node_left)
    monkeypatch.setattr(ExecutorDriver, "handle", handle)


def shard_counts_as_installed_before_it_is_sent(monkeypatch):
    def install(self, shard, task, node, copy):
        state = self.executor.store.extract([shard]) if copy else None
        instructions = self.executor.handle(events.StateInstalled(shard, task), self.host.now())
        yield from self._carry_out(instructions)
        yield from self._send(node, m.Install(task, shard, state))
        return []

    monkeypatch.setattr(ExecutorDriver, "_install", install)


def silent_outputs_are_delivered(monkeypatch):
    """A task at home delivers outputs of silent work."""

    def process(self, processor, task, number, work):
        outputs, busy = yield partial(self.host.process, processor, work.batch())
        yield partial(self.host.deliver, outputs)
        yield from self._settle(self.executor.done(task, number, busy, self.host.now()))

    monkeypatch.setattr(ExecutorDriver, "_process", process)


def feeding_stops_after_one_item(monkeypatch):
    """The feeder sends one item per wake, although no other wake follows before `take` has returned None."""
    real = ExecutorDriver._feed

    def feed(self, task, node):
        taken = self.executor.take(task, self.host.now())
        if taken is not None and isinstance(taken[1], Work):
            number, work = taken
            yield from self._send(node, m.SubBatch(task, number, work.batch(), work.silent))
        elif taken is not None:
            self.executor.routes.tasks[task].queue._items.appendleft(taken[1])
            yield from real(self, task, node)

    monkeypatch.setattr(ExecutorDriver, "_feed", feed)


def stale_change_of_cores_is_applied(monkeypatch):
    def set_cores(self, change, cores):
        return self.handle(events.SetCores(cores))

    monkeypatch.setattr(ExecutorDriver, "set_cores", set_cores)


def settled_work_does_not_wait_for_events(monkeypatch):
    """Instructions of settled work are carried out between an event and its instructions."""
    monkeypatch.setattr(ExecutorDriver, "_settle", ExecutorDriver._carry_out)


def remote_task_ignores_wake(monkeypatch):
    """A control record for an idle task stays in the task's queue."""
    real = RemoteDriver.receive

    def receive(self, message):
        if isinstance(message, m.Label):
            self.part.receive(message, self.host.now())
            return
        yield from real(self, message)

    monkeypatch.setattr(RemoteDriver, "receive", receive)


MUTANTS = [
    messages_overtake_outputs,
    link_is_cut_late,
    shard_counts_as_installed_before_it_is_sent,
    silent_outputs_are_delivered,
    feeding_stops_after_one_item,
    stale_change_of_cores_is_applied,
    settled_work_does_not_wait_for_events,
    remote_task_ignores_wake,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_driver_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]

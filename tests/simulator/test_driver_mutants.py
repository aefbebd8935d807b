"""Mutants of the driver that runtime and simulator share: the checks must find each injected fault."""

from __future__ import annotations

from functools import partial

import pytest
from scenario import first_failure

from dask_elastic.executor import events
from dask_elastic.executor.drivers.emitter import Emitter
from dask_elastic.executor.drivers.executor_driver import ExecutorDriver
from dask_elastic.executor.drivers.home_backlog import HomeBacklog, Left, Place
from dask_elastic.executor.drivers.remote_driver import RemoteDriver
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import Work
from dask_elastic.vocab import messages as m

MOST_SEEDS = 300

TRIED_FIRST = (109, 81, 20)
TRIED_FIRST_OF_LEFT_RUNS = (256,)
"""Seeds that find what hardly any other does."""


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
        self._emitter.put(events.NodeLeft(node, died=died))

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


def batch_is_run_although_the_task_is_awake(monkeypatch):
    """The thread that brings a batch processes it, whether or not the task's own thread is running."""
    real = Routes.wake

    def wake(task):
        task.sleeping |= task.at_home
        return real(task)

    monkeypatch.setattr(Routes, "wake", staticmethod(wake))


def task_sleeps_after_an_inline_run(monkeypatch):
    """Items that were queued during an inline run wait for a wake that never comes."""

    def end_run(self, task):
        self.routes.tasks[task].sleeping = True
        return False

    monkeypatch.setattr(ElasticExecutor, "end_run", end_run)


def task_is_woken_although_it_sleeps(monkeypatch):
    """After each inline run the task's thread is woken, also if the task is free for the next inline run."""
    real = ElasticExecutor.end_run

    def end_run(self, task):
        real(self, task)
        return True

    monkeypatch.setattr(ElasticExecutor, "end_run", end_run)


def outputs_without_credit_are_overtaken(monkeypatch):
    """The task's thread delivers the outputs of an inline run behind those of what it takes next."""
    real = ExecutorDriver._process

    def process(self, processor, task, number, work):
        yield from real(self, processor, task, number, work)
        if task in self._late:
            number, busy, left = self._late.pop(task)
            yield partial(self.host.deliver, left)
            yield from self._settle(self.executor.done(task, number, busy, self.host.now()))

    finish = ExecutorDriver._finish_inline

    def finish_inline(self, task):
        self.__dict__.setdefault("_late", {})
        if len(self.executor.routes.tasks[task].queue):
            self._late[task] = self._undelivered.pop(task)
        else:
            yield from finish(self, task)

    monkeypatch.setattr(ExecutorDriver, "_late", {}, raising=False)
    monkeypatch.setattr(ExecutorDriver, "_process", process)
    monkeypatch.setattr(ExecutorDriver, "_finish_inline", finish_inline)


def inline_run_is_settled_before_its_outputs_leave(monkeypatch):
    """A label or a loss of cores then passes outputs that lack credit."""

    def run_inline(self, task):
        taken = self.executor.begin_run(task, self.host.now())
        if taken is not None:
            number, work = taken
            outputs, busy = yield partial(self.host.process, self._processors[task], work.batch())
            yield from self._settle(self.executor.done(task, number, busy, self.host.now()))
            if not work.silent:
                yield partial(self.host.deliver, outputs)
        if self.executor.end_run(task):
            yield self._bells[task].ring

    monkeypatch.setattr(ExecutorDriver, "_run_inline", run_inline)


def remote_task_sleeps_after_a_run_in_its_place(monkeypatch):
    """Messages that arrived during the run wait for a wake that never comes."""

    def end_run(self, number):
        self.tasks[number].sleeping = True
        return False

    monkeypatch.setattr(RemotePart, "end_run", end_run)


def outputs_that_lack_credit_are_delivered_again(monkeypatch):
    """The emitter's thread delivers all outputs of a message of which some have left."""
    real = Emitter._handled_now

    def handled_now(self):
        item = self._backlog.head
        done = yield from real(self)
        if not done and isinstance(item, m.Outputs):
            self._backlog.head = Left(item.deliveries)
        return done

    monkeypatch.setattr(Emitter, "_handled_now", handled_now)


def two_threads_emit(monkeypatch):
    """Outputs that arrive while another thread handles the backlog are handled by the thread that brings them."""
    real = HomeBacklog.put

    def put(self, item, waits=True):
        place = real(self, item, waits)
        return Place.FIRST if place is Place.BEHIND and isinstance(item, m.Outputs) else place

    monkeypatch.setattr(HomeBacklog, "put", put)


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
    batch_is_run_although_the_task_is_awake,
    task_sleeps_after_an_inline_run,
    task_is_woken_although_it_sleeps,
    outputs_without_credit_are_overtaken,
    inline_run_is_settled_before_its_outputs_leave,
    remote_task_ignores_wake,
]

MUTANTS_OF_LEFT_RUNS = [
    remote_task_sleeps_after_a_run_in_its_place,
    outputs_that_lack_credit_are_delivered_again,
    two_threads_emit,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_driver_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS, TRIED_FIRST)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in error.__notes__[0]


@pytest.mark.parametrize("mutate", MUTANTS_OF_LEFT_RUNS, ids=lambda mutate: mutate.__name__)
def test_mutant_of_left_runs_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    error = first_failure(MOST_SEEDS, TRIED_FIRST_OF_LEFT_RUNS, leaves=0.6)
    assert error is not None, f"{MOST_SEEDS} seeds found nothing"

"""The host of an executor's driver on threads, without a cluster around it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId

ME = ExecutorId("per_key", 0)


class NoExchange:
    """Keeps the messages to remote tasks."""

    def __init__(self):
        self.sent = []

    def send_messages(self, node, executor, messages, fence):
        """Keep them."""
        self.sent += [message for message in messages if fence.stamp(message) is not None]


class NoThreads(JobThreads):
    """Starts none."""

    def start(self, name, run):
        """Do nothing."""


@pytest.fixture
def home():
    """An executor whose only task is remote."""
    executor = ElasticExecutor(ME, KeySpace(1, 4), 0, {1: 1}, [ExecutorId("rows", 0)], threading.Lock)
    made = ExecutorThreads(executor, (), None, NoThreads("job", print), NoExchange(), print)
    made.begin()
    return made


def test_flush_answer_after_the_caller_gave_up_is_ignored(home):
    with pytest.raises(TimeoutError, match="did not send their state"):
        home.flush(0.0)
    [_, request] = home.exchange.sent
    assert request == m.FlushRequest(0, 1)
    home.receive(m.Flush(0, -1, None, request.token))


def test_caller_that_waits_for_a_flush_returns_when_the_job_ends(home):
    waiting = threading.Thread(target=home.flush, args=(60.0,), daemon=True)
    waiting.start()
    while len(home.exchange.sent) < 2:
        time.sleep(0.01)
    home.threads.end()
    home.abort()
    waiting.join(100)
    assert not waiting.is_alive()
    home.flush(60.0)


def test_late_change_of_cores_is_refused_and_counted(home):
    home.set_cores(2, {1: 2})
    with pytest.raises(PlanningError, match="core change 1 is stale, core change 2 came before it"):
        home.set_cores(1, {1: 1})
    assert home.driver.refused == 1
    assert sorted(task.node for task in home.executor.routes.tasks.values()) == [1, 1]


def test_clock_fires_nothing_while_the_job_halts_for_a_savepoint(home, monkeypatch):
    ticks = []
    monkeypatch.setattr(home, "handle", ticks.append)
    home.exchange.idle_watch = IdleWatch(lambda: None)

    def ticked(times):
        ends = iter([False] * times + [True])
        monkeypatch.setattr(home, "_aborted", SimpleNamespace(wait=lambda seconds: next(ends)))
        home._tick()
        return len(ticks)

    assert ticked(2) == 2
    home.begin_checkpoint(1)
    assert ticked(1) == 3
    home.begin_checkpoint(2, halts=True)
    assert ticked(2) == 3
    home.go_on(1)
    assert ticked(1) == 3
    home.go_on(2)
    assert ticked(1) == 4

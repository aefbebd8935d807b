"""The home of an executor on threads, without a cluster around it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.worker.executor_driver import ExecutorDriver
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId

ME = ExecutorId("per_key", 0)


class JobPart(SimpleNamespace):
    """What a home needs: it keeps what is sent, and starts no thread."""

    def __init__(self):
        super().__init__(ended=False, sent=[])

    def send_messages(self, node, executor, messages, fence):
        self.sent += [message for message in messages if fence.stamp(message) is not None]

    def thread(self, name, run):
        pass


@pytest.fixture
def home():
    """An executor whose only task is remote."""
    executor = ElasticExecutor(ME, KeySpace(1, 4), 0, {1: 1}, [ExecutorId("rows", 0)], threading.Lock)
    made = ExecutorDriver(JobPart(), executor, component=None)
    made.start()
    return made


def test_an_answer_that_comes_after_its_asker_gave_up_harms_nobody(home):
    with pytest.raises(TimeoutError, match="did not send their state"):
        home.flush(0.0)
    [_, request] = home.job_part.sent
    assert request == m.FlushRequest(0, 1)
    home.receive(m.Flush(0, -1, None, request.token))


def test_who_waits_for_a_flush_goes_on_when_the_job_ends(home):
    waiting = threading.Thread(target=home.flush, args=(60.0,), daemon=True)
    waiting.start()
    while len(home.job_part.sent) < 2:
        time.sleep(0.01)
    home.job_part.ended = True
    home.abort()
    waiting.join(10)
    assert not waiting.is_alive()
    home.flush(60.0)


def test_a_change_of_cores_that_comes_late_is_refused_and_counted(home):
    home.job_part.refused = 0
    home.set_cores(2, {1: 2})
    with pytest.raises(PlanningError, match="change 1 of its cores came after change 2"):
        home.set_cores(1, {1: 1})
    assert home.job_part.refused == 1
    assert sorted(task.node for task in home.executor.routes.tasks.values()) == [1, 1]

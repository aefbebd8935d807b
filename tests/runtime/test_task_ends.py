"""A worker answers as soon as no executor at home there has tasks on some nodes; nothing polls."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.protocol.part_calls import AwaitTaskEnds
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.runtime.worker.task_ends import TaskEnds
from dask_elastic.vocab.identity import ExecutorId

ME = ExecutorId("counts", 0)
SECONDS = 100


@pytest.fixture
def part():
    """A job's part with an executor that has tasks on nodes 0 and 1."""
    executor = ElasticExecutor(ME, KeySpace(1, 4), 0, {0: 1, 1: 1}, [ExecutorId("rows", 0)], threading.Lock)
    spec = SimpleNamespace(generation=1)
    return SimpleNamespace(
        spec=spec,
        ended=False,
        homes={ME: SimpleNamespace(executor=executor)},
        executor=executor,
        idle_watch=IdleWatch(lambda: None),
    )


def answer(part, meanwhile, wait=SECONDS):
    """Return what a worker with the part answers, when something happens in a thread while it waits."""

    async def run():
        node = SimpleNamespace(job_parts={"job": part}, worker=SimpleNamespace(address="here"))
        loop = asyncio.get_running_loop()
        node.task_ends = TaskEnds(lambda: loop)
        part.executor.task_ended = node.task_ends.note
        asking = asyncio.ensure_future(Handlers(node).await_task_ends(AwaitTaskEnds("job", 1, (1, 2), wait)))
        await asyncio.sleep(0)
        assert not asking.done()
        await loop.run_in_executor(None, meanwhile, node)
        return await asyncio.wait_for(asking, SECONDS)

    return asyncio.run(run())


def lose(part):
    part.executor.links.cut(1)
    part.executor.handle(events.NodeLeft(1), now=0.0)


def test_end_of_last_task_on_nodes_is_answered_at_once(part):
    assert answer(part, lambda node: lose(part), wait=1e6) == ()


def test_wait_for_task_ends_timeout_names_executors_with_tasks_left(part):
    assert answer(part, lambda node: node.task_ends.note(), wait=0.05) == (ME,)


def test_job_end_ends_the_wait_for_task_ends(part):
    def end(node):
        part.ended = True
        node.task_ends.note()

    assert answer(part, end, wait=1e6) == (ME,)


def test_task_end_is_recorded_without_executor_lock(part):
    locked = []
    part.executor.task_ended = lambda: locked.append(part.executor.lock.locked())
    lose(part)
    assert locked == [False]
    assert part.executor.task_nodes() == {0}

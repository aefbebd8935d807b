"""Changes of an executor, and upkeep, that fail midway end the job; refusals change nothing."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.protocol.part_calls import ChangeSharing, MoveShard, SetCores
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.node import NodeRuntime
from dask_elastic.vocab.errors import MoveRefused, PlanningError
from dask_elastic.vocab.identity import ExecutorId

EXECUTOR = ("job", 1)
CALLS = {
    "set_cores": SetCores(*EXECUTOR, change=1, operator="op", executor=0, cores={0: 2}),
    "change_sharing": ChangeSharing(*EXECUTOR, operator="op", executor=0, separate=True, since=None),
    "move_shard": MoveShard(*EXECUTOR, operator="op", executor=0, shard=1, task=1),
}


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (RuntimeError("can't start new thread"), True),
        (OSError("a disk that cannot be read"), True),
        (PlanningError("an executor keeps at least one core"), False),
        (MoveRefused("the shard is moving already"), False),
    ],
)
def test_job_fails_unless_the_change_is_refused(command, error, fails):
    """It used to go on with a task without a thread, or a shard that was paused, whose rows waited for ever."""
    failed = []

    def change(*arguments):
        raise error

    async def in_thread(function, *arguments):
        return function(*arguments)

    executor = SimpleNamespace(store=SimpleNamespace(event_time=None))
    home = SimpleNamespace(set_cores=change, handle=change, executor=executor)
    part = SimpleNamespace(
        spec=SimpleNamespace(generation=1, node=0), homes={ExecutorId("op", 0): home}, fail=failed.append,
        idle_watch=SimpleNamespace(note=lambda: None),
    )  # fmt: skip
    node = SimpleNamespace(job_parts={"job": part}, worker=SimpleNamespace(address="a"), in_thread=in_thread)
    with pytest.raises(type(error), match=str(error)):
        asyncio.run(getattr(Handlers(node), command)(CALLS[command]))
    assert failed == ([error] if fails else [])


def test_job_fails_when_no_thread_can_run_what_waits_behind_blocked_code(monkeypatch):
    """It used to be dropped: its task waited for ever."""
    errors, begun, blocked = [], threading.Event(), threading.Event()
    now = [0.0]
    threads = JobThreads("job", errors.append)
    threads.runs._clock = lambda: now[0]
    assert threads.leave_run(lambda: (begun.set(), blocked.wait(100)))
    assert begun.wait(100)
    assert threads.leave_run(lambda: None)
    now[0] += 1.0
    options = SimpleNamespace(balance_interval=60.0, flush_interval=60.0)
    part = SimpleNamespace(
        ended=False, threads=threads, fail=errors.append, clear_suspects=lambda: False,
        idle_watch=SimpleNamespace(idle=False), spec=SimpleNamespace(options=options), balance_due=None, flush_due=None,
    )  # fmt: skip

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    NodeRuntime._keep_up(SimpleNamespace(job_parts={"job": part}, guarded=NodeRuntime.guarded), {})
    assert [str(error) for error in errors] == ["can't start new thread"]
    threads.ended = True
    blocked.set()

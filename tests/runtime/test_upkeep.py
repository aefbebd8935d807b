"""The upkeep of a worker without the threads that it needs."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.node import NodeRuntime


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

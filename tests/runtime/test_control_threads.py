"""Calls that wait hold up neither others nor reports, and user code that exits does not end the worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.control_threads import THREADS, ControlThreads
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.node import NodeRuntime
from dask_elastic.runtime.worker.staging_server import StagingServer
from dask_elastic.vocab.errors import JobFailed


@pytest.fixture
def threads():
    made = ControlThreads()
    yield made
    made.close()


def test_reports_and_short_calls_return_while_others_wait(threads):
    blocked = threading.Event()

    async def test():
        waiting = [asyncio.ensure_future(threads.wait_for(blocked.wait, 100)) for _ in range(2 * THREADS)]
        assert await asyncio.wait_for(threads.run(sum, [1, 2]), 100) == 3
        assert await asyncio.wait_for(threads.report(sum, [3, 4]), 100) == 7
        assert await asyncio.wait_for(threads.read(sum, [5, 6]), 100) == 11
        assert not any(one.done() for one in waiting)
        blocked.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 100) == [True] * (2 * THREADS)

    asyncio.run(test())


@pytest.mark.parametrize("what", ["code", "spool", "epoch"])
def test_storage_and_imports_that_hang_hold_up_no_short_call(threads, what):
    """Parts that read checkpoints, spools that are held, and copies of epochs from storage."""
    blocked = threading.Event()

    def hang(*arguments):
        return b"" if blocked.wait(100) else None

    node = NodeRuntime.__new__(NodeRuntime)
    node._threads, node._loaded = threads, hang
    handlers, server = Handlers(node), StagingServer(node)
    handlers._checkpoints = lambda call: SimpleNamespace(hold=hang)
    buffer = EpochBuffer.__new__(EpochBuffer)
    buffer.copy = hang
    server._source = lambda *place: SimpleNamespace(mailbox=buffer)
    call = SimpleNamespace(job="job", generation=1, source="rows", instance=0, number=1, part=None)
    calls = {
        "code": lambda: node.check_code("job", b""),
        "spool": lambda: handlers.hold_sources(call),
        "epoch": lambda: server.staged_rows(call),
    }

    async def test():
        waiting = [asyncio.ensure_future(calls[what]()) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(node.in_thread(sum, [1, 2]), 10) == 3
        finally:
            blocked.set()
        await asyncio.wait_for(asyncio.gather(*waiting), 100)

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["run", "wait_for", "read", "build", "report"])
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_exit_of_user_code_is_an_error_of_the_call(threads, kind, raised):
    def leave():
        raise raised(3)

    with pytest.raises(JobFailed, match=rf"user code has ended its thread.*{raised.__name__}"):
        asyncio.run(getattr(threads, kind)(leave))
    assert asyncio.run(threads.run(sys.getrefcount, 0))

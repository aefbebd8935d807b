"""Rows of a client that cannot reach the workers, and of which nothing becomes durable any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.spool.log import SpoolLog
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.spool import Spool
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.vocab.errors import UnknownJob
from dask_elastic.vocab.identity import ExecutorId

ROWS = memoryview(table_bytes(pa.table({"n": [1, 2]})))


def test_client_of_a_generation_that_has_ended_is_told_to_ask_the_scheduler(tmp_path):
    folder = CheckpointFolder(tmp_path)
    spool = Spool(SpoolLog(folder, "spool/run/rows/0", next_generation(folder)), 0, 1)
    source = SimpleNamespace(spool=spool, mailbox=Mailbox(spool=spool))
    part = SimpleNamespace(
        spec=SimpleNamespace(generation=1),
        sources={ExecutorId("rows", 0): source},
        idle_watch=SimpleNamespace(note=lambda: None),
        ended=False,
    )
    node = SimpleNamespace(
        job_parts={"job": part},
        worker=SimpleNamespace(address="tcp://one"),
        in_thread=asyncio.to_thread,
        in_waiting_thread=asyncio.to_thread,
    )
    errors: list[BaseException] = []
    threads = JobThreads("job", errors.append)
    spool.start(threads, "spool")

    def send(sequence):
        return asyncio.run(Handlers(node).send(part_calls.Send("job", 1, "rows", 0, ROWS, None, "client", sequence)))

    assert send(1)
    # Another scheduler continues the job; this one does not know it yet.
    next_generation(folder)
    for _ in range(2):
        with pytest.raises(UnknownJob, match="accepts no rows on worker tcp://one any more"):
            send(2)
    assert threads.join(20) == []
    assert errors == []

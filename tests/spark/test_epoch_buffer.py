"""The epoch buffer of a source: writers on an event loop, a reader in a thread, and a ledger."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from dask_elastic.runtime.protocol.handoff_calls import CommittedEpoch, EpochsToRead, NextEpochs, TakeEpochs
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import HandoffError, SourceError
from dask_elastic.vocab.identity import ExecutorId

ROWS = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
CHUNK = memoryview(ROWS.serialize())
SECONDS = 100


class Ledger:
    """Answers calls as the scheduler does, from a local ledger."""

    def __init__(self):
        self.ledger = EpochLedger(1)
        self.changed = threading.Condition()

    def ask(self, call):
        with self.changed:
            if isinstance(call, TakeEpochs):
                note = self.ledger.rewind if call.begins else self.ledger.acknowledge
                note(0, call.through)
                return None
            assert isinstance(call, NextEpochs)
            self.changed.wait_for(lambda: self.ledger.pending(0, call.after), call.wait)
            return EpochsToRead(tuple(CommittedEpoch(r.number, r.parts) for r in self.ledger.pending(0, call.after)))

    def commit(self, part):
        with self.changed:
            self.ledger.commit(part.attempt.query, part.attempt.epoch, [part])
            self.changed.notify_all()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def make(tmp_path, pool):
    """Return a function that makes a buffer with memory for some chunks, and its ledger."""

    def made(chunks):
        ledger = Ledger()

        async def in_thread(function, *arguments):
            return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

        part, source = JobGeneration("job", 1), ExecutorId("rows", 0)
        made = EpochBuffer(chunks * CHUNK.nbytes, tmp_path / "spilled", ledger.ask, part, source, in_thread)
        return made, ledger

    return made


def attempt(epoch, partition=0):
    return AttemptId("q", epoch, partition, "a")


async def stage(buffer, epoch, chunks):
    buffer.begin(attempt(epoch), ROWS.schema)
    for _ in range(chunks):
        await buffer.add(attempt(epoch), CHUNK)
    file = await buffer.finish(attempt(epoch))
    return StagedPart(attempt(epoch), 0, chunks * ROWS.num_rows, epoch, file)


def read(buffer, offset=None):
    return (batch for batch, _ in buffer.read(offset))


def commit(buffer, ledger, part):
    buffer.seal("q", part.attempt.epoch, [part.attempt])
    ledger.commit(part)


def test_chunks_beyond_memory_are_spilled_and_read_back_in_order(make, tmp_path):
    buffer, ledger = make(2)
    part = asyncio.run(stage(buffer, 0, 5))
    assert (buffer.memory, buffer.spilled) == (2 * CHUNK.nbytes, 3 * CHUNK.nbytes)
    assert len([*(tmp_path / "spilled").iterdir()]) == 3
    commit(buffer, ledger, part)
    buffer.close()
    assert [batch.equals(ROWS) for batch in read(buffer)] == [True] * 5
    assert (buffer.memory, buffer.spilled, [*(tmp_path / "spilled").iterdir()]) == (0, 0, [])
    assert ledger.ledger.pending(0) == []


def test_writer_blocks_while_committed_rows_fill_the_memory(make, pool):
    buffer, ledger = make(2)

    async def run():
        commit(buffer, ledger, await stage(buffer, 0, 2))
        second = asyncio.ensure_future(stage(buffer, 1, 2))
        await asyncio.sleep(0.05)
        assert not second.done()
        assert buffer.spilled == 0
        batches = read(buffer)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(pool, next, batches)
        await loop.run_in_executor(pool, next, batches)
        commit(buffer, ledger, await asyncio.wait_for(second, SECONDS))
        buffer.close()
        rest = await loop.run_in_executor(pool, list, batches)
        assert len(rest) == 2
        assert buffer.peak <= buffer._staging.limit

    asyncio.run(run())


def test_uncommitted_rows_are_not_read_and_dropped_by_the_next_commit(make, tmp_path):
    buffer, ledger = make(1)

    async def run():
        await stage(buffer, 0, 3)  # of a driver that died before it aborted the epoch
        return await stage(buffer, 1, 1)

    commit(buffer, ledger, asyncio.run(run()))
    buffer.close()
    assert len(list(read(buffer))) == 1
    assert (buffer.memory, buffer.spilled, [*(tmp_path / "spilled").iterdir()]) == (0, 0, [])


def test_seal_of_missing_part_is_refused(make):
    buffer, _ = make(1)
    with pytest.raises(HandoffError, match="its staged rows are lost"):
        buffer.seal("q", 0, [attempt(0)])


def test_abort_drops_all_rows_and_unblocks_writers(make, tmp_path):
    buffer, ledger = make(1)

    async def run():
        commit(buffer, ledger, await stage(buffer, 0, 2))
        waiting = asyncio.ensure_future(stage(buffer, 1, 1))
        await asyncio.sleep(0.05)
        buffer.abort()
        with pytest.raises(SourceError, match="has ended"):
            await asyncio.wait_for(waiting, SECONDS)

    asyncio.run(run())
    assert list(read(buffer)) == []
    assert (buffer.memory, buffer.spilled, (tmp_path / "spilled").exists()) == (0, 0, False)


def test_send_to_spark_source_is_refused(make):
    buffer, _ = make(1)
    with pytest.raises(SourceError, match=r"job\.send has no place"):
        buffer.offer(ROWS, 0.0)

"""The intake of a source: writers on an event loop, a reader in a thread, and the ledger between them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from dask_elastic.runtime.protocol.handoff_calls import CommittedEpoch, NextEpochs, TakeEpochs
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import HandoffError, SourceError
from dask_elastic.vocab.identity import ExecutorId

ROWS = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
CHUNK = memoryview(ROWS.serialize())
SECONDS = 20


class Ledger:
    """What the scheduler answers, with no scheduler."""

    def __init__(self):
        self.ledger = EpochLedger(1)
        self.changed = threading.Condition()

    def ask(self, call):
        with self.changed:
            if isinstance(call, TakeEpochs):
                self.ledger.acknowledge(0, call.through)
                return None
            assert isinstance(call, NextEpochs)
            self.changed.wait_for(lambda: self.ledger.pending(0, call.after), call.wait)
            return tuple(CommittedEpoch(r.number, r.parts) for r in self.ledger.pending(0, call.after))

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
    """Return a function that makes an intake of so many chunks, and its ledger."""

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


async def stage(intake, epoch, chunks):
    intake.begin(attempt(epoch), ROWS.schema)
    for _ in range(chunks):
        await intake.add(attempt(epoch), CHUNK)
    intake.finish(attempt(epoch))
    return StagedPart(attempt(epoch), 0, chunks * ROWS.num_rows, epoch)


def commit(intake, ledger, part):
    intake.seal("q", part.attempt.epoch, [part.attempt])
    ledger.commit(part)


def test_what_does_not_fit_is_spilled_and_read_back_in_order(make, tmp_path):
    intake, ledger = make(2)
    part = asyncio.run(stage(intake, 0, 5))
    assert (intake.memory, intake.spilled) == (2 * CHUNK.nbytes, 3 * CHUNK.nbytes)
    assert len([*(tmp_path / "spilled").iterdir()]) == 3
    commit(intake, ledger, part)
    intake.close()
    assert [batch.equals(ROWS) for batch in intake] == [True] * 5
    assert (intake.memory, intake.spilled, [*(tmp_path / "spilled").iterdir()]) == (0, 0, [])
    assert ledger.ledger.pending(0) == []


def test_a_writer_waits_while_committed_rows_fill_the_memory(make, pool):
    intake, ledger = make(2)

    async def run():
        commit(intake, ledger, await stage(intake, 0, 2))
        second = asyncio.ensure_future(stage(intake, 1, 2))
        await asyncio.sleep(0.05)
        assert not second.done()
        assert intake.spilled == 0
        batches = iter(intake)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(pool, next, batches)
        await loop.run_in_executor(pool, next, batches)
        commit(intake, ledger, await asyncio.wait_for(second, SECONDS))
        intake.close()
        rest = await loop.run_in_executor(pool, list, batches)
        assert len(rest) == 2
        assert intake.peak <= intake._staging.limit

    asyncio.run(run())


def test_what_is_not_committed_is_not_read_and_goes_with_the_next_commit(make, tmp_path):
    intake, ledger = make(1)

    async def run():
        await stage(intake, 0, 3)  # of a driver that died before it could abort
        return await stage(intake, 1, 1)

    commit(intake, ledger, asyncio.run(run()))
    intake.close()
    assert len(list(intake)) == 1
    assert (intake.memory, intake.spilled, [*(tmp_path / "spilled").iterdir()]) == (0, 0, [])


def test_a_part_that_is_not_here_cannot_be_sealed(make):
    intake, _ = make(1)
    with pytest.raises(HandoffError, match="its staged rows are lost"):
        intake.seal("q", 0, [attempt(0)])


def test_the_end_drops_everything_and_frees_who_waits(make, tmp_path):
    intake, ledger = make(1)

    async def run():
        commit(intake, ledger, await stage(intake, 0, 2))
        waiting = asyncio.ensure_future(stage(intake, 1, 1))
        await asyncio.sleep(0.05)
        intake.abort()
        with pytest.raises(SourceError, match="has ended"):
            await asyncio.wait_for(waiting, SECONDS)

    asyncio.run(run())
    assert list(intake) == []
    assert (intake.memory, intake.spilled, (tmp_path / "spilled").exists()) == (0, 0, False)


def test_rows_cannot_be_sent_to_it_by_hand(make):
    intake, _ = make(1)
    with pytest.raises(SourceError, match=r"job\.send has no place"):
        intake.offer(ROWS, 0.0)

"""The event loop of the scheduler neither opens folders of checkpoints nor pickles ledgers: both may block."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.checkpoint_parts import ExecutorPart, SourcePosition
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints, instances
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger, LedgerSnapshot
from dask_elastic.runtime.scheduler.restarts import Restarts
from dask_elastic.runtime.scheduler.spooled_ledger import SpooledLedger, in_checkpoint
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import CheckpointCorrupt

A, B = (f"tcp://192.0.2.{number}:8000" for number in (1, 2))
PARTS = {"source": SourcePosition((0, 0)), "compute": ExecutorPart(Chain(4), 0.0), "sink": ()}


@pytest.fixture
def on_loop(monkeypatch):
    """Return a function that has the calls of a method noted that an event loop makes: their objects."""

    def noted(kind, name):
        found, real = [], getattr(kind, name)

        def method(self, *arguments):
            if asyncio._get_running_loop() is not None:
                found.append(self)
            return real(self, *arguments)

        monkeypatch.setattr(kind, name, method)
        return found

    return noted


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path)


async def started(fake, address, folder):
    coordinator = Coordinator(fake.Scheduler({address: 2}))
    await coordinator.submit(fake.submission(executors=1, checkpoint=folder.url, checkpoint_interval=3600.0))
    return coordinator, coordinator.jobs["job"]


def test_folder_is_opened_in_threads_when_a_job_ends_and_when_its_next_run_waits(fake, folder, on_loop, monkeypatch):
    monkeypatch.setattr("dask_elastic.runtime.scheduler.job_starts.lease_seconds", lambda record, timeout: 0.2)
    opened = on_loop(CheckpointFolder, "_open")

    async def run():
        await started(fake, A, folder)
        # Its scheduler is lost.
        coordinator, _ = await started(fake, B, folder)
        await coordinator.stop(job_calls.Stop("job"))
        async with asyncio.timeout(20):
            while may_run(folder):
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert opened == []


def test_folder_is_opened_in_threads_for_a_damaged_checkpoint(fake, folder, on_loop):
    opened = on_loop(CheckpointFolder, "_open")

    async def run():
        coordinator, record = await started(fake, A, folder)
        error = await Restarts._damaged(record, CheckpointCorrupt("state", "1 byte", "no such file"))
        assert "submit the job again with another folder" in str(error)
        await coordinator.close()

    asyncio.run(run())
    assert opened == []


async def acknowledge_all(checkpoints, record, state, number):
    kinds = {summary.name: summary.kind for summary in record.spec.summaries}
    for one in instances(record.spec):
        state.progress.acknowledge(one, pickle.dumps(Pickled.of(PARTS[kinds[one.component]])))


def test_checkpoint_opens_its_folder_and_pickles_its_ledgers_in_threads(fake, folder, on_loop, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_begin", acknowledge_all)
    opened, slimmed = on_loop(CheckpointFolder, "_open"), on_loop(LedgerSnapshot, "slim")
    pickled = on_loop(LedgerSnapshot, "__getstate__")
    monkeypatch.setattr(LedgerSnapshot, "__setstate__", lambda self, state: vars(self).update(state), raising=False)
    loaded = on_loop(LedgerSnapshot, "__setstate__")

    async def run():
        coordinator, record = await started(fake, A, folder)
        ledger = EpochLedger(1, durable=True)
        ledger.commit("q", 0, [StagedPart(AttemptId("q", 0, 0, "a"), 0, 1, 5)])
        record.checkpoints.ledgers["rows"] = SpooledLedger(ledger, EpochSpool(folder, "rows"), 1)
        await coordinator.checkpoints.take(record)
        # Until old checkpoints are deleted.
        async with record.checkpoints.exclusive:
            pass
        await coordinator.close()

    asyncio.run(run())
    assert (opened, slimmed, pickled, loaded) == ([], [], [], [])
    snapshot, covered = in_checkpoint(Catalog(folder).load(1), "rows")
    assert (snapshot.count, snapshot.waiting, covered.reached) == (1, ((1,),), (0,))


def test_storage_that_hangs_holds_up_neither_other_folders_nor_names_of_hosts():
    blocked = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        hung = [asyncio.ensure_future(in_thread(blocked.wait, 100)) for _ in range(40)]
        try:
            async with asyncio.timeout(20):
                assert await in_thread(sum, [1, 2]) == 3
                assert await loop.getaddrinfo("localhost", 80)
        finally:
            blocked.set()
        await asyncio.gather(*hung)

    asyncio.run(run())

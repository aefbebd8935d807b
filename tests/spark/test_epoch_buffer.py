"""The epoch buffer of a source: writers on an event loop, a reader in a thread, and a ledger."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.checkpoint.storage.folder_changes import FolderChanges
from dask_elastic.runtime.protocol.handoff_calls import CommittedEpoch, EpochsToRead, NextEpochs, TakeEpochs
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.worker.buffers import epoch_buffer, spool_writer
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.staging import ABANDONED_SECONDS
from dask_elastic.vocab.epoch import AttemptId, StagedPart
from dask_elastic.vocab.errors import CheckpointError, HandoffError, SourceError
from dask_elastic.vocab.identity import ExecutorId

ROWS = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
CHUNK = memoryview(ROWS.serialize())
SECONDS = 100


class Ledger:
    """Answers calls as the scheduler does, from a local ledger."""

    def __init__(self, durable=False):
        self.ledger = EpochLedger(1, durable=durable)
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

    def made(chunks, spool=None, ledger=None):
        ledger = ledger or Ledger()

        async def in_thread(function, *arguments):
            return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

        part, source = JobGeneration("job", 1), ExecutorId("rows", 0)
        made = EpochBuffer(chunks * CHUNK.nbytes, tmp_path / "spilled", ledger.ask, part, source, in_thread, spool)
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


def test_rows_of_a_driver_that_never_came_back_are_dropped(make, tmp_path, monkeypatch):
    buffer, ledger = make(2)
    abandoned = asyncio.run(stage(buffer, 0, 3))
    later = time.monotonic() + ABANDONED_SECONDS
    monkeypatch.setattr(epoch_buffer, "time", SimpleNamespace(monotonic=lambda: later))
    assert buffer.spilled
    recent = asyncio.run(stage(buffer, 2, 1))
    assert (buffer.memory, buffer.spilled, [*(tmp_path / "spilled").iterdir()]) == (CHUNK.nbytes, 0, [])
    with pytest.raises(HandoffError, match="write the epoch again"):
        commit(buffer, ledger, abandoned)
    commit(buffer, ledger, recent)
    buffer.close()
    assert [batch.equals(ROWS) for batch in read(buffer)] == [True]


def test_full_disk_is_named_to_the_writer_and_leaves_no_file(make, tmp_path, monkeypatch):
    buffer, ledger = make(1)
    plain, full = Path.write_bytes, [True]

    def write_bytes(path, data):
        plain(path, data[: len(data) // 2] if full else data)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(SourceError, match=r"cannot be written to .*spilled: .* No space left on device.*staging="):
        asyncio.run(stage(buffer, 0, 2))
    assert [*(tmp_path / "spilled").iterdir()] == []
    buffer.drop(attempt(0))
    full.clear()
    commit(buffer, ledger, asyncio.run(stage(buffer, 0, 2)))
    buffer.close()
    assert [batch.equals(ROWS) for batch in read(buffer)] == [True] * 2


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


def test_chunk_that_is_written_during_abort_leaves_no_file_and_no_folder(make, tmp_path, monkeypatch):
    buffer, _ = make(0)
    write = epoch_buffer._write

    def writing(path, chunk):
        buffer.abort()
        write(path, chunk)

    monkeypatch.setattr(epoch_buffer, "_write", writing)
    with pytest.raises(HandoffError, match="is not being staged"):
        asyncio.run(stage(buffer, 0, 1))
    assert not (tmp_path / "spilled").exists()


def test_chunk_whose_folder_is_removed_during_abort_is_refused_because_source_has_ended(make, tmp_path, monkeypatch):
    buffer, _ = make(0)
    write_bytes = Path.write_bytes

    def writing(path, chunk):
        buffer.abort()
        # The abort removes the folder, and so does another chunk that is refused.
        assert not (tmp_path / "spilled").exists()
        return write_bytes(path, chunk)

    monkeypatch.setattr(Path, "write_bytes", writing)
    with pytest.raises(SourceError, match="the source has ended: it takes no more rows"):
        asyncio.run(stage(buffer, 0, 1))
    assert not (tmp_path / "spilled").exists()


def test_event_loop_deletes_no_spilled_rows(make, tmp_path, monkeypatch):
    buffer, _ = make(1)
    plain, on_loop = Path.unlink, []

    def unlink(path, missing_ok=False):
        on_loop.append(asyncio._get_running_loop() is not None)
        plain(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)

    async def run():
        await stage(buffer, 0, 3)
        buffer.drop(attempt(0))
        await stage(buffer, 1, 3)
        buffer.abort()

    asyncio.run(run())
    assert on_loop == [False] * 4
    assert not (tmp_path / "spilled").exists()


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_source_ends_although_its_spilled_rows_cannot_be_deleted(make, tmp_path, monkeypatch, error):
    """The instances that end behind it would go on for ever."""
    buffer, _ = make(1)
    asyncio.run(stage(buffer, 0, 3))
    for spilled in (tmp_path / "spilled").iterdir():
        spilled.unlink()

    def unlink(path, missing_ok=False):
        if error is not FileNotFoundError or not missing_ok:
            raise error(str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    buffer.abort()
    assert buffer.spilled == 0


def test_send_to_spark_source_is_refused(make):
    buffer, _ = make(1)
    with pytest.raises(SourceError, match=r"job\.send has no place"):
        buffer.offer(ROWS, 0.0)


@pytest.fixture
def spool(tmp_path):
    return EpochSpool(CheckpointFolder(tmp_path / "checkpoints"), "rows")


def spooled(tmp_path):
    """The names of the files of rows that are complete."""
    return sorted(path.name for path in (tmp_path / "checkpoints").rglob("*.arrows") if path.name[0] != ".")


def test_spooled_epochs_are_read_again_from_every_offset(make, spool):
    buffer, ledger = make(10, spool, Ledger(durable=True))
    parts = [asyncio.run(stage(buffer, 0, 3))]
    commit(buffer, ledger, parts[0])
    parts.append(asyncio.run(stage(buffer, 1, 2)))
    commit(buffer, ledger, parts[1])
    buffer.close()
    first = list(buffer.read(None))
    assert [offset for _, offset in first] == [(0, 1000), (0, 2000), (1, 0), (1, 1000), (2, 0)]
    assert (buffer.memory, ledger.ledger.backlog()) == (0, 0)
    # As if a restarted job continued behind each batch, or in its midst.
    for number in range(len(first)):
        offset = None if number == 0 else first[number - 1][1]
        again, _ = make(10, spool, ledger)
        again.close()
        assert [(batch.num_rows, reached) for batch, reached in again.read(offset)] == [
            (batch.num_rows, reached) for batch, reached in first[number:]
        ]
    again, _ = make(10, spool, ledger)
    again.close()
    assert [(batch["n"][0].as_py(), batch.num_rows, offset) for batch, offset in again.read((0, 1500))][:2] == [
        (500, 500, (0, 2000)),
        (0, 1000, (1, 0)),
    ]


def test_committed_attempt_that_is_not_sealed_here_is_read_from_storage(make, spool):
    buffer, ledger = make(4, spool, Ledger(durable=True))
    part = asyncio.run(stage(buffer, 0, 2))
    ledger.commit(part)
    buffer.close()
    assert len(list(read(buffer))) == 2
    assert buffer.memory == 0
    # A late seal finds nothing, and keeps no memory.
    buffer.seal("q", 0, [attempt(0)])
    assert buffer._staging.attempts == frozenset()


def test_abort_keeps_complete_files_and_drops_others(make, spool, tmp_path):
    buffer, _ = make(4, spool, Ledger(durable=True))

    async def run():
        await stage(buffer, 0, 2)
        buffer.begin(attempt(1), ROWS.schema)
        await buffer.add(attempt(1), CHUNK)
        buffer.abort()
        with pytest.raises((HandoffError, SourceError)):
            await buffer.finish(attempt(1))

    asyncio.run(run())
    assert len(spooled(tmp_path)) == 1


@pytest.mark.parametrize(("kind", "method"), [(EpochSpool, "write_rows"), (LocalFiles, "write")])
def test_attempt_whose_source_ends_while_it_waits_for_storage_can_be_sent_again(
    make, tmp_path, monkeypatch, kind, method
):
    """Its writer sends it again after an error of a source, and fails after one of the storage."""
    changes = FolderChanges()
    buffer, _ = make(4, EpochSpool(CheckpointFolder(tmp_path / "checkpoints", changes=changes), "flights"))
    write, begun, gate = getattr(kind, method), threading.Event(), threading.Event()

    def slow(self, *arguments):
        begun.set()
        gate.wait(SECONDS)
        return write(self, *arguments)

    async def run():
        monkeypatch.setattr(kind, method, slow)
        staging = asyncio.ensure_future(stage(buffer, 0, 1))
        await asyncio.to_thread(begun.wait, SECONDS)
        buffer.abort()
        changes.close()
        gate.set()
        with pytest.raises(SourceError, match="its source has ended"):
            await staging

    asyncio.run(run())
    assert spooled(tmp_path) == []


def test_error_of_the_storage_reaches_the_writer(make, spool, monkeypatch):
    buffer, _ = make(4, spool, Ledger(durable=True))

    def full(self, path, buffers):
        next(iter(buffers))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(LocalFiles, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        asyncio.run(stage(buffer, 0, 2))


def test_slow_storage_makes_the_writer_wait(make, spool, monkeypatch):
    monkeypatch.setattr(spool_writer, "WAITING_BYTES", 2 * CHUNK.nbytes)
    buffer, _ = make(100, spool, Ledger(durable=True))
    let_write, most = threading.Event(), 0
    write = LocalFiles.write

    def slow(self, path, buffers):
        let_write.wait(SECONDS)
        write(self, path, buffers)

    monkeypatch.setattr(LocalFiles, "write", slow)

    async def run():
        nonlocal most
        staging = asyncio.ensure_future(stage(buffer, 0, 20))
        while not buffer._writers or buffer._writers[attempt(0)]._bytes <= 2 * CHUNK.nbytes:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        most = len(buffer._writers[attempt(0)]._chunks)
        assert not staging.done()
        let_write.set()
        return await asyncio.wait_for(staging, SECONDS)

    part = asyncio.run(run())
    assert most == 3
    assert pa.Table.from_batches(spool.read_rows(part.file)).num_rows == 20 * ROWS.num_rows


def few(buffer, epoch, partition, rows):
    """Stage a few rows."""

    async def staged():
        found = attempt(epoch, partition)
        buffer.begin(found, rows.schema)
        await buffer.add(found, memoryview(rows.serialize()))
        return StagedPart(found, 0, rows.num_rows, epoch, await buffer.finish(found))

    return asyncio.run(staged())


def test_seal_returns_a_copy_of_few_rows(make):
    buffer, ledger = make(10)
    parts = [few(buffer, 3, partition, ROWS.slice(partition, 1 + partition)) for partition in range(2)]
    copy = buffer.seal("q", 3, [part.attempt for part in reversed(parts)])
    with pa.ipc.open_stream(copy) as reader:
        assert reader.schema.metadata == {b"query": b"q", b"epoch": b"3"}
        assert reader.read_all().to_pylist() == [{"n": 0}, {"n": 1}, {"n": 2}]
    ledger.ledger.commit("q", 3, parts)
    buffer.close()
    assert [batch.num_rows for batch in read(buffer)] == [1, 2]


def test_seal_returns_no_copy_of_many_spilled_missing_or_different_rows(make, spool):
    buffer, _ = make(1)
    few(buffer, 0, 0, ROWS)
    few(buffer, 0, 1, ROWS.slice(0, 1))
    assert buffer.spilled
    assert buffer.seal("q", 0, [attempt(0, 0), attempt(0, 1)]) is None
    assert buffer.seal("q", 1, []) is None
    buffer, _ = make(100, spool, Ledger(durable=True))
    few(buffer, 0, 0, ROWS)
    assert buffer.seal("q", 0, [attempt(0, 0), attempt(0, 1)]) is None
    few(buffer, 1, 0, ROWS.slice(0, 1))
    few(buffer, 1, 1, ROWS.slice(0, 1).rename_columns(["m"]))
    assert buffer.seal("q", 1, [attempt(1, 0), attempt(1, 1)]) is None
    for partition in range(12):
        few(buffer, 2, partition, ROWS)
    assert buffer.seal("q", 2, [attempt(2, partition) for partition in range(12)]) is None


@pytest.mark.parametrize("chunks", [1, 10], ids=["spilled", "in memory"])
def test_copy_of_a_staged_attempt_is_there_until_it_is_read(make, chunks):
    buffer, ledger = make(chunks)
    part = asyncio.run(stage(buffer, 0, 3))
    commit(buffer, ledger, part)
    for _ in range(2):
        assert pa.ipc.open_stream(buffer.copy(part)).read_all().num_rows == 3 * ROWS.num_rows
    buffer.close()
    batches = read(buffer)
    next(batches)
    with pytest.raises(SourceError, match=r"epoch 0.* has read its rows"):
        buffer.copy(part)
    assert len(list(batches)) == 2


def test_copy_of_an_attempt_that_was_read_comes_from_storage(make, spool):
    buffer, ledger = make(10, spool, Ledger(durable=True))
    part = asyncio.run(stage(buffer, 0, 3))
    commit(buffer, ledger, part)
    buffer.close()
    assert len(list(read(buffer))) == 3
    assert pa.ipc.open_stream(buffer.copy(part)).read_all().num_rows == 3 * ROWS.num_rows
    spool.drop_rows([part.file.path])
    with pytest.raises(SourceError, match="keeps no copy"):
        buffer.copy(part)

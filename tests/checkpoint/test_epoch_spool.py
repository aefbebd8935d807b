"""The spool of epochs on storage: every damage is found, and only what checkpoints cover is deleted."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from dask_elastic.checkpoint.epoch_spool import Covered, EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, EpochRecord, StagedPart
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

ROWS = pa.record_batch({"n": pa.array(range(100), pa.int64()), "text": [f"row {n}" for n in range(100)]})
CHUNKS = [ROWS.slice(at, 25).serialize().to_pybytes() for at in range(0, 100, 25)]
SCHEMA = ROWS.schema.serialize().to_pybytes()
STREAM = EpochOrigin(EpochKind.STREAM, "/checkpoint")


@pytest.fixture
def spool(tmp_path):
    return EpochSpool(CheckpointFolder(tmp_path), "rows / of all")


def staged(spool, epoch, partition=0, name="a", query="a query: with signs"):
    attempt = AttemptId(query, epoch, partition, name)
    return StagedPart(attempt, partition % 2, 100, 7, spool.write_rows(attempt, SCHEMA, CHUNKS))


def record(spool, number, partitions=2):
    parts = tuple(staged(spool, number - 1, partition) for partition in range(partitions))
    return EpochRecord(number, "a query: with signs", number - 1, 200, 14, parts, STREAM)


class Query(str):
    """A name of a query whose end a test can see."""


def files(spool, kind):
    root = Path(spool.folder.url) / "epochs"
    return sorted(path for path in root.glob(f"*/{kind}/*"))


def test_rows_and_records_are_read_as_they_were_written(spool):
    written = [record(spool, number) for number in (1, 2, 3)]
    for each in written:
        spool.append(each)
    assert spool.records() == written
    assert EpochSpool.sources(spool.folder) == ["rows / of all"]
    batches = [*spool.read_rows(written[0].parts[0].file)]
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([ROWS]))
    assert spool.missing([part.file for each in written for part in each.parts]) == []


def test_rows_whose_writer_fails_or_is_dropped_leave_no_file(spool, monkeypatch):
    def dropped():
        yield CHUNKS[0]
        raise RuntimeError("dropped")

    with pytest.raises(CheckpointError, match="dropped"):
        spool.write_rows(AttemptId("q", 0, 0, "a"), SCHEMA, dropped())

    def full(self, path, buffers):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(LocalFiles, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        staged(spool, 0)
    with pytest.raises(CheckpointError, match="No space left"):
        spool.append(EpochRecord(1, "q", 0, 0, 0, ()))
    assert (files(spool, "rows"), files(spool, "ledger")) == ([], [])


@pytest.mark.parametrize("damage", ["bit", "torn", "missing", "swapped"])
def test_every_damage_of_rows_and_records_is_found(spool, damage):
    written = [record(spool, number) for number in (1, 2, 3)]
    for each in written:
        spool.append(each)

    def hurt(path, other):
        contents = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(contents[: len(contents) // 2])
        elif damage == "swapped":
            path.write_bytes(other.read_bytes())
        else:
            middle = len(contents) // 2
            path.write_bytes(contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :])

    rows = Path(spool.folder.url) / written[1].parts[0].file.path
    hurt(rows, files(spool, "ledger")[0])
    with pytest.raises(CheckpointCorrupt, match=rows.name):
        list(spool.read_rows(written[1].parts[0].file))
    second = files(spool, "ledger")[1]
    hurt(second, files(spool, "ledger")[0])
    with pytest.raises(CheckpointCorrupt, match=r"0000000002\.json"):
        spool.records()


def test_second_scheduler_never_replaces_a_record(spool):
    first = record(spool, 1)
    spool.append(first)
    assert spool.contains(first)
    other = EpochRecord(1, "q", 9, 0, 0, ())
    with pytest.raises(CheckpointError, match="exists already"):
        spool.append(other)
    assert not spool.contains(other)
    assert spool.records() == [first]


def test_sweep_deletes_what_a_checkpoint_covers_and_attempts_that_were_not_chosen(spool):
    written = [record(spool, number) for number in (1, 2, 3, 4)]
    for each in written:
        spool.append(each)
    staged(spool, 0, name="speculative")
    staged(spool, 3, name="speculative")
    assert spool.sweep(Covered(4, (2, 1))) == 1
    assert spool.records() == written[1:]
    assert len(files(spool, "rows")) == 3 * 2 + 1
    # An instance that has read everything, and a ledger that contains only three records.
    assert spool.sweep(Covered(3, (None, None))) == 2
    assert spool.records() == written[3:]
    assert spool.sweep(Covered(3, (None, None))) == 0
    spool.drop_uncommitted(spool.records())
    assert spool.missing([part.file for part in written[3].parts]) == []
    assert len(files(spool, "rows")) == 2


def test_sweep_deletes_what_a_killed_worker_left(spool, monkeypatch):
    written = record(spool, 1)
    spool.append(written)

    def killed(*names):
        raise OSError(errno.EIO, "the process ends here")

    with monkeypatch.context() as patched:
        patched.setattr("dask_elastic.checkpoint.local_files.os.link", killed)
        patched.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(CheckpointError):
            staged(spool, 0, name="killed")
    assert len(files(spool, "rows")) == 2 + 1
    assert spool.sweep(Covered(4, (2, 1))) == 1
    assert files(spool, "rows") == []


def test_end_is_durable(spool):
    assert not spool.ended
    spool.end()
    spool.end()
    assert EpochSpool(spool.folder, "rows / of all").ended


def test_names_of_batches_are_not_kept(spool):
    query = Query("each batch has a name of its own")
    staged(spool, 0, query=query)
    known = weakref.ref(query)
    del query
    gc.collect()
    assert known() is None

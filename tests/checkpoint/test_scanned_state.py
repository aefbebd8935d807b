"""State is read in one pass: each file once, in bounded memory, whatever the number of parts."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from checkpointed import Job
from fsspec.implementations.memory import MemoryFileSystem

import dask_elastic as de
from dask_elastic.checkpoint import folder as folders
from dask_elastic.checkpoint import remote_files, spilled_parts, state_file
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.saved_state import SavedState
from dask_elastic.vocab.errors import CheckpointError

DELAYS = {f"N{i}": i for i in range(200)}


@pytest.fixture
def reads(monkeypatch):
    """Count the reads of whole files of state in memory://, by path."""
    counted = Counter()
    cat_file, get_file = MemoryFileSystem.cat_file, MemoryFileSystem.get_file

    def cat(self, path, start=None, end=None, **options):
        counted.update([path] * ("/state/" in path and end is None))
        return cat_file(self, path, start, end, **options)

    def get(self, path, *arguments, **options):
        counted.update([path] * ("/state/" in path))
        return get_file(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    monkeypatch.setattr(MemoryFileSystem, "get_file", get)
    return counted


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder for temporary files, which is empty again at the end."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    yield found
    assert not list(found.iterdir())


def saved_planes(url):
    """Return a job whose chains have several files."""
    job = Job(CheckpointFolder(url))
    job.put(DELAYS)
    job.checkpoint()
    for number in range(3):
        job.put({f"N{10 * number + i}": -number for i in range(9)} | {f"N{number}": None})
        job.checkpoint()
    return job


def planes_of(tables):
    table = pa.concat_tables(tables)
    return dict(zip(table["plane"].to_pylist(), table["worst"].to_pylist(), strict=True))


@pytest.mark.parametrize("memory", [0, 4000, 10**9])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
def test_each_file_is_read_once_for_any_number_of_parts(parts, memory, reads, temporary, monkeypatch):
    monkeypatch.setattr(spilled_parts, "MEMORY_BYTES", memory)
    job = saved_planes("memory://planes")
    tables = list(de.scan_state("memory://planes", "planes", parts=parts))
    assert len(tables) == parts
    assert planes_of(tables) == job.contents()
    assert reads == {f"/planes/{file.path}": 1 for chain in job.chains for file in chain.files}
    assert len(reads) > 4


def test_a_table_of_all_parts_reads_each_file_once(reads):
    job = saved_planes("memory://planes")
    assert planes_of([de.read_state("memory://planes", "planes")]) == job.contents()
    assert reads == {f"/planes/{file.path}": 1 for chain in job.chains for file in chain.files}


def test_large_remote_file_is_read_once_into_a_temporary_file(reads, temporary, monkeypatch):
    monkeypatch.setattr(folders, "_PART_BYTES", 1000)
    job = saved_planes("memory://planes")
    assert planes_of(de.scan_state("memory://planes", "planes")) == job.contents()
    assert set(reads.values()) == {1}
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    assert planes_of(de.scan_state("memory://planes", "planes")) == job.contents()


@pytest.mark.parametrize("descriptors", ["/proc/self/fd", "/missing"])
def test_copy_of_a_remote_file_has_no_name_where_the_system_allows_that(descriptors, temporary, monkeypatch):
    seen, real = [], MemoryFileSystem.get_file

    def get(self, path, target, *args, **kwargs):
        real(self, path, target, *args, **kwargs)
        seen.append(len(list(temporary.iterdir())))

    monkeypatch.setattr(MemoryFileSystem, "get_file", get)
    monkeypatch.setattr(remote_files, "_DESCRIPTORS", descriptors)
    monkeypatch.setattr(folders, "_PART_BYTES", 1000)
    job = saved_planes("memory://planes")
    assert planes_of(de.scan_state("memory://planes", "planes")) == job.contents()
    # A process that is killed while it copies leaves the files that have a name.
    assert set(seen) == {0 if Path(descriptors).is_dir() else 1}


def test_portions_of_separate_readers_have_each_key_once(reads):
    job = saved_planes("memory://planes")
    saved = SavedState.open("memory://planes", "planes")
    readers = [list(saved.scan(some, 8)) for some in (range(3), range(3, 4), range(4, 8))]
    assert [len(tables) for tables in readers] == [3, 1, 4]
    assert planes_of([table for tables in readers for table in tables]) == job.contents()
    # The first executor has parts 0 to 3.
    assert set(reads.values()) == {1, 2}


@pytest.mark.parametrize(("parts", "nbytes", "portions"), [(2, 10**9, 1), (2, 1, 4), (3, 1, 2), (8, 1, 1)])
def test_portions_are_at_most_as_many_as_shards(parts, nbytes, portions, monkeypatch):
    saved_planes("memory://planes")
    monkeypatch.setattr("dask_elastic.checkpoint.saved_state.PART_BYTES", nbytes)
    assert SavedState.open("memory://planes", "planes").portions(parts) == portions


def test_memory_is_bounded_when_the_state_is_large(tmp_path, temporary, monkeypatch):
    monkeypatch.setattr(folders, "_PART_BYTES", 100_000)
    monkeypatch.setattr(state_file, "BATCH_BYTES", 100_000)
    monkeypatch.setattr(spilled_parts, "MEMORY_BYTES", 300_000)
    job = Job(CheckpointFolder(tmp_path / "checkpoints"), executors=1, shards=32)
    count = 60_000
    job.put({f"N{i:030}": i for i in range(count)})
    nbytes = job.checkpoint().nbytes
    assert nbytes > 4_000_000
    pool = pa.default_memory_pool()
    measured = pa.proxy_memory_pool(pool)
    tracemalloc.start()
    pa.set_memory_pool(measured)
    try:
        rows = sum(table.num_rows for table in de.scan_state(tmp_path / "checkpoints", "planes", parts=32))
        peak = measured.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        pa.set_memory_pool(pool)
        tracemalloc.stop()
    assert rows == count
    assert peak < nbytes / 2


@pytest.mark.parametrize("most", [0, 2_000, 10**9])
def test_temporary_files_have_no_names_and_are_closed_when_a_reader_stops_early(most, temporary, monkeypatch):
    made, real = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: made.append(real(**options)) or made[-1])
    monkeypatch.setattr(spilled_parts, "MEMORY_BYTES", 0)
    monkeypatch.setattr(spilled_parts, "FILE_BYTES", most)
    job = saved_planes("memory://planes")
    tables = de.scan_state("memory://planes", "planes", parts=8)
    assert next(tables).num_rows
    assert not made[-1].closed
    # A process that is killed now leaves nothing.
    assert not list(temporary.iterdir())
    tables.close()
    assert all(file.closed for file in made)
    assert planes_of(de.scan_state("memory://planes", "planes", parts=8)) == job.contents()
    assert all(file.closed for file in made)


def test_a_folder_for_temporary_files_that_cannot_be_written_is_named(temporary, monkeypatch):
    monkeypatch.setattr(spilled_parts, "MEMORY_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    saved_planes("memory://planes")
    with pytest.raises(CheckpointError, match=r"cannot write state .*missing: FileNotFoundError.* variable TMPDIR"):
        list(de.scan_state("memory://planes", "planes", parts=8))


class FullDisk(io.RawIOBase):
    """A file on a disk without room."""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET) -> int:
        return 0

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("buffered", [16, 1 << 20])
def test_temporary_files_that_do_not_fit_on_the_disk_are_an_error(buffered, temporary, monkeypatch):
    monkeypatch.setattr(spilled_parts, "MEMORY_BYTES", 0)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: io.BufferedRandom(FullDisk(), buffered))
    saved_planes("memory://planes")
    with pytest.raises(CheckpointError, match=r"cannot write state .*No space left on device.* variable TMPDIR"):
        list(de.scan_state("memory://planes", "planes", parts=8))

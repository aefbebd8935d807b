"""Crashes between any two calls, disks that are full at any byte, and names that are not durable lose no checkpoint."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from checkpointed import Job

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.scheduler.checkpoint_folders import open_checkpoints
from dask_elastic.vocab.epoch import EpochRecord
from dask_elastic.vocab.errors import CheckpointError


class Crash(BaseException):
    """The process ends here."""


class Machine:
    """The calls that change files, which fail from one call on, or from one written byte on."""

    CALLS = ((os, "fsync"), (os, "link"), (Path, "open"), (Path, "mkdir"), (Path, "unlink"), (Path, "rmdir"))

    def __init__(self, calls=None, space=None):
        self.calls = calls
        self.space = space
        self.made = 0

    def step(self):
        if self.calls is not None and self.made >= self.calls:
            raise Crash
        self.made += 1

    @contextmanager
    def running(self):
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in self.CALLS:
                patch.setattr(owner, name, self._counted(owner, name))
            yield self

    def _counted(self, owner, name):
        real = getattr(owner, name)

        def call(*arguments, **options):
            self.step()
            result = real(*arguments, **options)
            return WrittenFile(result, self) if name == "open" else result

        return call


class WrittenFile:
    """A file on a disk of little space, whose process may end between two writes."""

    def __init__(self, file, machine):
        self.file = file
        self.machine = machine

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, buffer):
        self.machine.step()
        if self.machine.space is not None:
            size = memoryview(buffer).nbytes
            self.file.write(memoryview(buffer)[: self.machine.space])
            if size > self.machine.space:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.machine.space -= size
            return size
        return self.file.write(buffer)


def visible(folder):
    return {str(path) for path in Path(folder.url).rglob("*") if path.is_file() and not path.name.startswith(".")}


def check_complete(folder):
    """Check that every visible file is complete."""
    for path in visible(folder):
        contents = Path(path).read_bytes()
        if path.endswith(".arrows"):
            assert contents.endswith(b"\xff\xff\xff\xff" + bytes(4)), path
            pa.ipc.open_stream(contents).read_all()
        elif path.endswith(".pickle"):
            assert contents == b"pickled topology"
    for number in Catalog(folder).numbers():
        Catalog(folder).manifest(number)


def started(path):
    """Return a job with two checkpoints, and changes since."""
    job = Job(CheckpointFolder(path))
    job.put({f"N{number}": number for number in range(20)})
    job.checkpoint()
    job.put({"N1": 100})
    job.checkpoint()
    before = job.contents()
    job.put({"N2": 200, "N3": None})
    return job, before, job.contents()


def crash_points(act, prepare):
    """Call `act` on a new job for each call after which it can crash, and yield the folder after each crash."""
    calls = 0
    while True:
        job, before, after = prepare(calls)
        with Machine(calls).running() as machine:
            try:
                act(job)
            except Crash:
                crashed = True
            else:
                crashed = False
        yield job, before, after, crashed
        if not crashed:
            assert machine.made == calls
            return
        calls += 1


def test_crash_at_any_call_leaves_the_previous_checkpoint_or_the_new_one(tmp_path):
    found = []
    for job, before, after, _ in crash_points(lambda job: job.checkpoint(), lambda n: started(tmp_path / str(n))):
        check_complete(job.folder)
        manifest, restored = Job.recovered(job.folder)
        assert restored.contents() == (after if manifest.number == 3 else before)
        found.append(manifest.number)
        # The next generation continues, and what the crash left is swept.
        restored.put({"N4": 400})
        expected = restored.contents()
        number = restored.checkpoint().number
        assert number > manifest.number
        sweep(restored.catalog)
        assert Job.recovered(job.folder)[1].contents() == expected
        partial = [path for path in Path(job.folder.url, "state").rglob(".*") if int(path.parent.name) < number]
        assert partial == []
    assert found == sorted(found)
    assert found.count(2) > 15
    assert found[-1] == 3


def test_crash_at_any_call_of_a_sweep_leaves_the_newest_checkpoints(tmp_path):
    def prepare(calls):
        job, _, _ = started(tmp_path / str(calls))
        for number in range(4):
            job.put({f"N{key}": number for key in range(20)})
            job.checkpoint()
        return job, None, job.contents()

    for job, _, after, _ in crash_points(lambda job: sweep(job.catalog), prepare):
        assert [manifest.number for manifest in Catalog(job.folder).complete()][:2] == [6, 5]
        assert Job.recovered(job.folder)[1].contents() == after
        sweep(job.catalog)
        assert job.catalog.numbers() == [6, 5]
        needed = {file.path for manifest in job.catalog.complete() for file in manifest.files}
        state = {name for name in needed if name.startswith("state/")}
        found = {str(path.relative_to(job.folder.url)) for path in Path(job.folder.url, "state").rglob("*.arrows")}
        assert found == state


def test_crash_while_a_generation_is_reserved_never_repeats_one(tmp_path):
    reserved = []
    for _, _, _, crashed in crash_points(
        lambda folder: reserved.append(next_generation(folder)), lambda n: (CheckpointFolder(tmp_path), None, None)
    ):
        if crashed:
            reserved.append(next_generation(CheckpointFolder(tmp_path)))
    assert len(set(reserved)) == len(reserved) > 2


def test_full_disk_at_any_byte_leaves_the_previous_checkpoint_and_no_partial_file(tmp_path):
    job, _, after = started(tmp_path / "whole")
    whole = visible(job.folder)
    job.checkpoint()
    size = sum(Path(path).stat().st_size for path in visible(job.folder) - whole)
    for space in sorted({0, 1, *range(2, size, size // 20), size - 1}):
        job, before, after = started(tmp_path / str(space))
        with (
            Machine(space=space).running(),
            pytest.raises(CheckpointError, match=r"cannot write .*No space left on device.* the storage has space"),
        ):
            job.checkpoint(3)
        manifest, restored = Job.recovered(job.folder)
        assert (manifest.number, restored.contents()) == (2, before)
        assert list(Path(job.folder.url).rglob(".*")) == []
        check_complete(job.folder)
        # With space again, the next checkpoint has what the failed one lost.
        job.checkpoint(4)
        assert Job.recovered(job.folder)[1].contents() == after


# A local disk that fails when the name of a complete file is synchronised: a power failure may remove that name.

FIRST = Manifest("delays", 1, 1, 0.0, 0.5, FileRef("topology/1.pickle", 1, "crc32:0"))
EPOCH = EpochRecord(1, "q", 0, 0, 0, ())


@pytest.fixture
def failing(monkeypatch):
    """The folders of which the next synchronisations fail, each as often as it is in the list."""
    left, real = [], os.fsync

    def fsync(descriptor):
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and name in left:
            left.remove(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr("dask_elastic.checkpoint.local_files.os.fsync", fsync)
    return left


@pytest.fixture
def catalog(tmp_path):
    made = Catalog(CheckpointFolder(tmp_path))
    made.folder.write(FIRST.topology.path, [b"1"])
    return made


@pytest.fixture
def spool(tmp_path):
    return EpochSpool(CheckpointFolder(tmp_path), "rows")


def test_checkpoint_is_complete_once_the_name_of_its_manifest_is_durable(catalog, failing):
    failing += ["manifests"]
    catalog.publish(FIRST)
    assert failing == []


def test_checkpoint_is_given_up_while_the_name_of_its_manifest_is_not_durable(catalog, failing):
    failing += ["manifests"] * 3
    with pytest.raises(CheckpointError, match=r"cannot write .*Input/output error"):
        catalog.publish(FIRST)
    # A restart must not begin from it either: sinks would commit what a power failure brings back as incomplete.
    with pytest.raises(CheckpointError, match=r"cannot sync .*manifests.*Input/output error"):
        catalog.newest_from(0)
    assert failing == []
    assert catalog.newest_from(0) == 1


def test_checkpoint_is_given_up_while_the_name_of_the_folder_of_manifests_is_not_durable(tmp_path, catalog, failing):
    failing += [tmp_path.name] * 2
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"cannot write .*Input/output error"):
            catalog.publish(FIRST)
    assert failing == []
    catalog.publish(FIRST)
    assert catalog.load().number == 1


def test_job_is_resumed_once_the_name_of_its_manifest_is_durable(tmp_path, catalog, failing):
    """Its sinks are about to commit what the checkpoint covers."""
    catalog.publish(FIRST)
    call = Submit("delays", "1", (), job_options({}), {}, b"", 1, "first", None)
    failing += ["manifests"]
    with pytest.raises(CheckpointError, match=r"cannot sync .*manifests.*Input/output error"):
        open_checkpoints(str(tmp_path), call, above=0)
    checkpoints, _, _ = open_checkpoints(str(tmp_path), call, above=0)
    assert checkpoints.newest == 1


def test_epoch_is_committed_once_the_name_of_its_record_is_durable(spool, failing):
    failing += ["ledger"] * 5
    with pytest.raises(CheckpointError, match=r"cannot write .*Input/output error"):
        spool.append(EPOCH)
    for look in (lambda: spool.contains(EPOCH), lambda: spool.found(1), spool.records):
        with pytest.raises(CheckpointError, match=r"cannot sync .*ledger.*Input/output error"):
            look()
    failing.clear()
    assert spool.contains(EPOCH)
    assert spool.found(1) == EPOCH
    assert spool.records() == [EPOCH]

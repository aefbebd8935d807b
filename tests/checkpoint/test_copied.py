from __future__ import annotations

import errno
import pickle
from dataclasses import replace

import pytest
from checkpointed import Job

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.copied import check_empty, copy_checkpoint
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.scheduler.checkpoint_folders import open_checkpoints
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError, SubmitError

DELAYS = {f"N{i}": i for i in range(50)}


@pytest.fixture
def taken(tmp_path):
    """A folder with two checkpoints, and the manifest of the second, which needs files of both."""
    folder = CheckpointFolder(tmp_path / "job")
    job = Job(folder)
    job.put(DELAYS)
    job.checkpoint()
    job.put({"N0": 7})
    return folder, job.checkpoint()


def test_copy_is_complete_without_the_folder_it_was_copied_from(taken, tmp_path):
    folder, manifest = taken
    target = CheckpointFolder(tmp_path / "copy")
    check_empty(target)
    copy_checkpoint(folder, manifest, target, savepoint=True)
    for file in manifest.files:
        folder.delete(file.path)
    copied = Catalog(target).load(verify=True)
    assert copied.savepoint
    assert copied.number == manifest.number
    # A job that continues reserves a generation above that of the copy.
    next_generation(target)
    assert Job.restored(target, copied).contents() == DELAYS | {"N0": 7}
    with pytest.raises(CheckpointError, match="has checkpoint 2 already"):
        check_empty(target)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_interrupted_copy_leaves_no_checkpoint_and_can_be_repeated(taken, tmp_path, monkeypatch, failing):
    folder, manifest = taken
    target = CheckpointFolder(tmp_path / "copy")
    write, count = target._files.write, 0

    def fail(path, buffers):
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(errno.ENOSPC, "full", path)
        write(path, buffers)

    assert len(manifest.files) >= 3
    monkeypatch.setattr(target._files, "write", fail)
    with pytest.raises(CheckpointError, match="cannot write"):
        copy_checkpoint(folder, manifest, target, savepoint=False)
    monkeypatch.undo()
    check_empty(target)
    assert not any(target.sizes(file.path.rpartition("/")[0]) for file in manifest.files)
    # A process that was killed deletes nothing: its complete files are used.
    target.write(manifest.topology.path, [folder.read(manifest.topology)])
    copy_checkpoint(folder, manifest, target, savepoint=False)
    assert Catalog(target).load(verify=True).files == manifest.files


def test_copy_whose_manifest_storage_has_written_after_all_keeps_its_files(taken, tmp_path, monkeypatch):
    folder, manifest = taken
    target, publish = CheckpointFolder(tmp_path / "copy"), Catalog.publish

    def unanswered(catalog, published):
        publish(catalog, published)
        raise CheckpointError("the storage has not answered within 30 s")

    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "publish", unanswered)
        with pytest.raises(CheckpointError, match="has not answered"):
            copy_checkpoint(folder, manifest, target, savepoint=True)
    assert Catalog(target).load(verify=True).number == manifest.number


def test_copy_whose_manifest_storage_writes_after_the_deadline_keeps_its_files(taken, tmp_path, monkeypatch):
    folder, manifest = taken
    target = CheckpointFolder(tmp_path / "copy")
    write, late = target._files.write, []

    def unanswered(path, buffers):
        if path.startswith("manifests/"):
            late.append((path, b"".join(buffers)))
            raise TimeoutError("the storage has not answered within 30 s")
        write(path, buffers)

    with monkeypatch.context() as patched:
        patched.setattr(target._files, "write", unanswered)
        with pytest.raises(CheckpointError, match="has not answered"):
            copy_checkpoint(folder, manifest, target, savepoint=True)
    [(path, contents)] = late
    write(path, [contents])
    assert Catalog(target).load(verify=True).number == manifest.number


def test_copy_that_fails_leaves_no_accepted_file_that_a_job_would_find(taken, tmp_path, monkeypatch):
    """Storage has written the file completely, and reports a failure."""
    folder, manifest = taken
    target, path = CheckpointFolder(tmp_path / "copy"), "epochs/rows/ledger/0000000005.json"
    folder.write(path, [b"record"])
    write = target._files.write

    def fail_late(written, buffers):
        write(written, buffers)
        if written == path:
            raise OSError(errno.EIO, "the connection was closed", written)

    monkeypatch.setattr(target._files, "write", fail_late)
    with pytest.raises(CheckpointError, match="the connection was closed"):
        copy_checkpoint(folder, manifest, target, savepoint=False, accepted=[(path, path)])
    assert target.sizes("epochs/rows/ledger") == {}


def test_job_that_continues_from_a_savepoint_is_a_run_of_its_own(taken, tmp_path):
    folder, manifest = taken
    savepoint = CheckpointFolder(tmp_path / "savepoint")
    manifest = replace(manifest, generation=7)
    copy_checkpoint(folder, manifest, savepoint, savepoint=True)
    own = tmp_path / "own"
    call = Submit("delays", "1", (), job_options({}), {}, b"", manifest.number, "second", savepoint.url)
    checkpoints, generation, _ = open_checkpoints(str(own), call, above=3)
    assert generation == 8
    assert (checkpoints.newest, checkpoints.last) == (manifest.number, manifest.number)
    copied = Catalog(CheckpointFolder(own)).load(verify=True)
    assert not copied.savepoint
    # A start that fails can be repeated from the copy: it is the same run as before.
    assert pickle.loads(CheckpointFolder(own).read(copied.topology)).run == "second"
    with pytest.raises(SubmitError, match="has checkpoints already, up to 2"):
        open_checkpoints(str(own), call, above=3)


def test_damaged_file_is_not_copied(taken, tmp_path):
    folder, manifest = taken
    damaged = tmp_path / "job" / manifest.files[-1].path
    damaged.write_bytes(bytes(damaged.stat().st_size))
    target = CheckpointFolder(tmp_path / "copy")
    with pytest.raises(CheckpointCorrupt):
        copy_checkpoint(folder, manifest, target, savepoint=True)
    assert Catalog(target).numbers() == []


def test_sweep_keeps_checkpoints_that_are_being_copied(taken):
    folder, manifest = taken
    job = Job.restored(folder, manifest)
    for delay in range(3):
        job.put({"N1": delay})
        job.checkpoint()
    sweep(Catalog(folder), keep=1, kept_from=manifest.number + 1)
    assert Catalog(folder).numbers() == [5, 4, 3]
    sweep(Catalog(folder), keep=1)
    assert Catalog(folder).numbers() == [5]

from __future__ import annotations

import errno
import os
import pickle
import re
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.file_ref import FileRef, checksum
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.vocab.epoch import EpochRecord
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError


class FullFileSystem(MemoryFileSystem):
    """A file system on which every file keeps its first bytes and then fails, as on a full disk."""

    protocol = "full"
    space = 0

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value[: self.space], mode=mode, **kwargs)
        if len(value) > self.space:
            raise OSError(errno.ENOSPC, "No space left on device")


class PlainFileSystem(MemoryFileSystem):
    """A file system without conditional requests."""

    protocol = "plain"

    def pipe_file(self, path, value, **kwargs):
        super().pipe_file(path, value)


class RenamingFileSystem(PlainFileSystem):
    """A file system that shows each file from its first byte on, as SFTP and HDFS do, and can rename."""

    protocol = ("renaming", "sftp")
    look = staticmethod(lambda: None)

    def pipe_file(self, path, value, **kwargs):
        super().pipe_file(path, value[: len(value) // 2])
        self.look()
        super().pipe_file(path, value)


class SecureFileSystem(RenamingFileSystem):
    """A file system over SFTP: it makes no folders by itself, and its server lacks the renaming that replaces files."""

    protocol = ("secure", "sftp")
    late = staticmethod(lambda: None)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("secure:/"))

    @property
    def ftp(self):
        return SimpleNamespace(rename=self._rename, posix_rename=self._posix_rename)

    def pipe_file(self, path, value, **kwargs):
        self._require(path)
        super().pipe_file(path, value)

    def mkdir(self, path, create_parents=True, **kwargs):
        assert not create_parents
        self._require(path)
        if self.exists(path):
            raise OSError("Failure")
        super().mkdir(path, create_parents=False)

    def mv(self, old, new):
        self.ftp.posix_rename(old, new)

    def _require(self, path):
        parent = self._parent(path)
        if parent.strip("/") and not self.isdir(parent):
            raise FileNotFoundError(errno.ENOENT, "No such file")

    def _rename(self, old, new):
        self.late()
        if self.exists(new):
            raise OSError("Failure")
        super().mv(old, new)

    def _posix_rename(self, old, new):
        raise OSError("Operation unsupported")


fsspec.register_implementation("full", FullFileSystem, clobber=True)
fsspec.register_implementation("secure", SecureFileSystem, clobber=True)
fsspec.register_implementation("renaming", RenamingFileSystem, clobber=True)
fsspec.register_implementation("plain", PlainFileSystem, clobber=True)


@pytest.fixture(params=["path", "file://", "memory://", "plain://", "renaming://", "secure://"])
def url(request, tmp_path):
    if request.param == "path":
        return str(tmp_path / "jobs" / "delays")
    return f"file://{tmp_path}/delays" if request.param == "file://" else f"{request.param}jobs/delays"


def test_file_is_read_as_written(url):
    folder = CheckpointFolder(url)
    ref = folder.write("state/1/a.arrows", (part for part in [b"ab", memoryview(b"cd")]), rows=4)
    assert ref == FileRef("state/1/a.arrows", 4, checksum(b"abcd"), 4)
    assert folder.read(ref).to_pybytes() == b"abcd"
    assert (folder.sizes("state/1"), folder.folders("state")) == ({"a.arrows": 4}, ["1"])
    assert pickle.loads(pickle.dumps(folder)).read(ref).to_pybytes() == b"abcd"


def test_file_is_never_replaced(url):
    folder = CheckpointFolder(url)
    ref = folder.write("manifests/1.json", [b"first"])
    with pytest.raises(CheckpointError, match=r"manifests/1.json exists already: .* Give each job a folder of its own"):
        folder.write("manifests/1.json", [b"second"])
    assert folder.read(ref).to_pybytes() == b"first"
    assert folder.sizes("manifests") == {"1.json": 5}


def test_file_that_is_deleted_while_its_folder_is_listed_is_left_out(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path))
    for name in ("1.json", "2.json"):
        folder.write(f"manifests/{name}", [b"text"])
    real = LocalFiles._entries

    def entries(self, folder):
        found = real(self, folder)
        (tmp_path / "manifests" / "1.json").unlink()
        return found

    monkeypatch.setattr(LocalFiles, "_entries", entries)
    assert folder.sizes("manifests") == {"2.json": 4}


def test_folder_is_deleted_only_if_it_is_empty(url):
    folder = CheckpointFolder(url)
    ref = folder.write("state/1/a", [b"a"])
    folder.delete_folder("state/1")
    assert folder.read(ref).to_pybytes() == b"a"
    folder.delete("state/1/a")
    folder.delete("state/1/a")
    folder.delete_folder("state/1")
    folder.delete_folder("state/1")
    assert folder.folders("state") == []


def test_missing_folder_is_empty(url):
    folder = CheckpointFolder(url)
    assert (folder.sizes("state"), folder.folders("state")) == ({}, [])


def test_damage_is_named_with_path_wanted_and_got(url):
    folder = CheckpointFolder(url)
    ref = folder.write("a", [b"abcd"])
    cases = {
        FileRef("a", 4, "crc32:00000000"): f"a is damaged: wanted checksum crc32:00000000, got {checksum(b'abcd')}",
        FileRef("a", 5, ref.checksum): "a is damaged: wanted 5 bytes, got 4 bytes",
        FileRef("b", 4, ref.checksum): "b is damaged: wanted 4 bytes, got no such file",
    }
    for wrong, text in cases.items():
        with pytest.raises(CheckpointCorrupt) as caught:
            folder.read(wrong)
        assert f"checkpoint file {folder.url}/{text}" in str(caught.value)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_generations_never_repeat(url):
    folder = CheckpointFolder(url)
    assert [next_generation(folder) for _ in range(20)] == list(range(1, 21))
    assert len(folder.sizes("generations")) <= 17
    # Another process that listed the folder at the same time reserves another number.
    stale = CheckpointFolder(url)
    stale.sizes = lambda name: {"000018": 0}
    assert next_generation(stale) == 21


def test_generations_stop_after_many_conflicts(url):
    folder = CheckpointFolder(url)
    folder.claim = lambda path, owner: False
    with pytest.raises(CheckpointError, match="other processes have reserved 100 generations meanwhile"):
        next_generation(folder)


def test_writable_folder_has_no_files_after_the_check(url):
    folder = CheckpointFolder(url)
    folder.check_writable()
    assert folder.sizes("") == {}


def test_folder_that_cannot_be_written_is_found(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"cannot write .*/file/probe-.*: NotADirectoryError: .* may write to it"):
        CheckpointFolder(tmp_path / "file").check_writable()


@pytest.mark.parametrize("step", ["write", "read", "delete"])
def test_check_names_the_step_that_fails(step, tmp_path):
    folder = CheckpointFolder(tmp_path)

    def fail(*arguments):
        raise PermissionError("not allowed")

    setattr(folder._files, step, fail)
    with pytest.raises(CheckpointError, match=f"cannot {step} .*/probe-.*: PermissionError: not allowed. Check that"):
        folder.check_writable()


@pytest.mark.parametrize("given", [None, 3, b"/checkpoints", "", " "])
def test_what_is_no_folder_is_refused(given):
    with pytest.raises(CheckpointError, match=re.escape(f"a checkpoint folder is {given!r}; give a path or a URL")):
        CheckpointFolder(given)


def test_unknown_protocol_is_found():
    with pytest.raises(CheckpointError, match=r"checkpoint folder nowhere://a: ValueError: Protocol not known.* Use a"):
        CheckpointFolder("nowhere://a")


@pytest.mark.parametrize("space", [0, 1, 4, 7])
def test_full_storage_leaves_no_file(space, monkeypatch):
    folder = CheckpointFolder("full://jobs")
    monkeypatch.setattr(FullFileSystem, "space", space)
    with pytest.raises(CheckpointError, match=r"cannot write full://jobs/a: OSError: .* No space left on device"):
        folder.write("a", [b"abcd", b"efgh"])
    assert folder.sizes("") == {}
    monkeypatch.setattr(FullFileSystem, "space", 8)
    assert folder.read(folder.write("a", [b"abcd", b"efgh"])).to_pybytes() == b"abcdefgh"


def test_record_that_is_being_written_to_a_file_system_that_renames_is_not_there_yet(monkeypatch):
    folder, seen = CheckpointFolder("renaming://jobs/epochs"), []
    spool = EpochSpool(folder, "flights")
    record = EpochRecord(1, "q", 0, 0, 0, ())
    spool.append(record)
    monkeypatch.setattr(RenamingFileSystem, "look", lambda _: seen.append((spool.found(2), spool.records())))
    spool.append(replace(record, number=2, epoch=1))
    assert seen == [(None, [record])]
    assert [one.number for one in spool.records()] == [1, 2]


@pytest.mark.parametrize("step", ["pipe_file", "mv"])
def test_write_that_fails_on_a_file_system_that_renames_leaves_no_file(step, monkeypatch):
    folder = CheckpointFolder(f"renaming://failing-{step}")

    def fail(self, *arguments, **options):
        real(self, *arguments, **options)
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    real = getattr(MemoryFileSystem, step) if step == "pipe_file" else lambda *arguments: None
    with monkeypatch.context() as patched:
        patched.setattr(RenamingFileSystem, step, fail)
        with pytest.raises(CheckpointError, match="Connection timed out"):
            folder.write("a", [b"rows"])
    assert folder.sizes("") == {}
    # WebHDFS answers a request to rename that it does not carry out without an error.
    monkeypatch.setattr(RenamingFileSystem, "mv", lambda *arguments: None)
    with pytest.raises(CheckpointError, match="it was not renamed"):
        folder.write("a", [b"rows"])
    assert folder.sizes("") == {}


def test_file_that_another_process_writes_while_an_sftp_server_renames_is_not_replaced(monkeypatch):
    folder = CheckpointFolder("secure://late")

    def write():
        for name in ("a", "b"):
            fsspec.filesystem("memory").pipe_file(f"/late/{name}", b"of another process")

    monkeypatch.setattr(SecureFileSystem, "late", lambda *_: write())
    with pytest.raises(CheckpointError, match="secure://late/a exists already"):
        folder.write("a", [b"rows"])
    assert not folder.claim("b")
    assert folder.sizes("") == {"a": 18, "b": 18}


def test_folders_that_another_process_makes_at_the_same_time_are_no_error(monkeypatch):
    real = SecureFileSystem.mkdir

    def mkdir(self, path, **options):
        real(self, path, **options)
        real(self, path, **options)

    monkeypatch.setattr(SecureFileSystem, "mkdir", mkdir)
    folder = CheckpointFolder("secure://shared/jobs/delays")
    folder.write("state/1/a", [b"rows"])
    assert folder.sizes("state/1") == {"a": 4}


def test_folders_that_another_process_makes_are_found_by_a_file_system_that_keeps_its_listings(monkeypatch):
    """As FTP in fsspec does."""
    exists, mkdir, missing = SecureFileSystem.exists, SecureFileSystem.mkdir, set()

    def kept_exists(self, path, **options):
        if path not in missing and exists(self, path):
            return True
        missing.add(path)
        return False

    def late_mkdir(self, path, **options):
        MemoryFileSystem.mkdir(self, path, create_parents=False)
        mkdir(self, path, **options)

    monkeypatch.setattr(SecureFileSystem, "exists", kept_exists)
    monkeypatch.setattr(SecureFileSystem, "invalidate_cache", lambda self, path=None: missing.clear())
    monkeypatch.setattr(SecureFileSystem, "mkdir", late_mkdir)
    folder = CheckpointFolder("secure://listed/jobs/delays")
    folder.write("state/1/a", [b"rows"])
    assert folder.sizes("state/1") == {"a": 4}


def test_folder_of_sftp_that_cannot_be_made_is_an_error_with_its_reason(monkeypatch):
    def mkdir(self, path, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(SecureFileSystem, "mkdir", mkdir)
    with pytest.raises(CheckpointError, match=r"cannot write secure://closed/state/a: PermissionError: .* denied"):
        CheckpointFolder("secure://closed").write("state/a", [b"rows"])


class LateFileSystem(MemoryFileSystem):
    """A file system whose request fails late, when another process has written the file."""

    protocol = "late"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, b"of another process", mode=mode)
        raise OSError(errno.ETIMEDOUT, "Connection timed out")


fsspec.register_implementation("late", LateFileSystem, clobber=True)


@pytest.mark.parametrize("step", ["write", "claim"])
def test_request_that_fails_late_leaves_the_file_of_another_process(step):
    folder = CheckpointFolder("late://jobs")
    with pytest.raises(CheckpointError, match="Connection timed out"):
        folder.write(step, [b"rows"]) if step == "write" else folder.claim(step)
    assert folder.read_unchecked(step).to_pybytes() == b"of another process"


def refuse_link(*arguments):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_claim_that_failed_on_a_full_disk_can_be_made_again(links, tmp_path, monkeypatch):
    real, full = os.fsync, [True]

    def fsync(descriptor):
        if full and (links or not Path(f"/proc/self/fd/{descriptor}").resolve().name.startswith(".")):
            full.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    if not links:
        monkeypatch.setattr("dask_elastic.checkpoint.local_files.os.link", refuse_link)
    monkeypatch.setattr("dask_elastic.checkpoint.local_files.os.fsync", fsync)
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match="No space left"):
        folder.claim("a", "first")
    assert [*tmp_path.iterdir()] == []
    assert folder.claim("a", "second")
    assert not folder.claim("a", "third")
    assert folder.read_unchecked("a").to_pybytes().startswith(b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_mount_without_links_has_complete_files_too(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_elastic.checkpoint.local_files.os.link", refuse_link)
    folder = CheckpointFolder(tmp_path)
    ref = folder.write("a", [b"first"])
    with pytest.raises(CheckpointError, match="exists already"):
        folder.write("a", [b"second"])
    assert folder.read(ref).to_pybytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("code", "outcome"), [(errno.EINVAL, "written"), (errno.EIO, "refused")])
def test_folder_that_cannot_be_synchronised_is_an_error_only_if_the_disk_fails(code, outcome, tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr("dask_elastic.checkpoint.local_files.os.fsync", fsync)
    folder = CheckpointFolder(tmp_path)
    if outcome == "written":
        assert folder.read(folder.write("a", [b"a"])).to_pybytes() == b"a"
    else:
        with pytest.raises(CheckpointError, match="Input/output error"):
            folder.write("a", [b"a"])


def test_local_path_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert CheckpointFolder("jobs").url == f"{tmp_path}/jobs"
    assert CheckpointFolder(Path("~/jobs")).url == "/home/someone/jobs"

"""Private directories: of ended processes they are removed, however these ended; of living ones they stay."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dask_elastic.spark.private_files import lock_name, private_directory

OWNER = """
import sys
from dask_elastic.spark.private_files import private_directory
directory = private_directory("tls")
(directory / "key.pem").write_text("secret")
print(directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder for temporary files, of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(folder):
    """A process with a private directory, which ends at the end of its input, and the directory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ["PYTHONPATH"], *sys.path]))}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        directory = Path(process.stdout.readline().strip())
        assert (directory / "key.pem").exists()
        yield process, directory
        process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("purpose", ["tls", "java"])
def test_directory_of_killed_process_is_removed_by_next_one(owner, how, purpose):
    process, directory = owner
    process.send_signal(how)
    process.wait()
    assert directory.exists()
    made = private_directory(purpose)
    assert not directory.exists()
    assert made.exists()


def test_directory_of_process_that_ends_is_removed(owner):
    process, directory = owner
    process.communicate()
    assert not directory.exists()


def test_directories_of_running_processes_stay(owner):
    _, directory = owner
    first = private_directory("tls")
    second = private_directory("tls")
    assert (directory / "key.pem").exists()
    assert first.exists()
    assert second.exists()


def test_directories_that_are_no_private_ones_stay(folder):
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / lock_name()).touch()
    (folder / "dask_elastic-link").symlink_to(elsewhere)
    (folder / "dask_elastic-tls-without-lock").mkdir()
    (folder / "dask_elastic-state-file").touch()
    before = set(folder.rglob("*"))
    made = private_directory("tls")
    assert set(folder.rglob("*")) == before | {made, made / lock_name()}


def test_directories_of_other_users_stay(owner, monkeypatch):
    process, directory = owner
    process.kill()
    process.wait()
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    private_directory("tls")
    assert directory.exists()


def test_directory_that_another_process_removes_before_it_is_locked_is_made_again(folder, monkeypatch):
    lock, removed = fcntl.flock, []

    def removing(file, operation):
        if not removed:
            removed.extend(folder.glob("dask_elastic-tls-*"))
            shutil.rmtree(removed[0])
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    made = private_directory("tls")
    assert made.exists()
    assert made not in removed


def test_directory_is_made_where_files_cannot_be_locked(folder, monkeypatch):
    def refusing(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refusing)
    first = private_directory("tls")
    second = private_directory("tls")
    assert first.exists()
    assert second.exists()


def test_directory_whose_owner_cannot_lock_it_stays_where_others_can(folder, monkeypatch):
    lock = fcntl.flock

    def refusing(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refusing)
    first = private_directory("tls")
    (first / "key.pem").write_text("secret")
    private_directory("tls")
    assert (first / "key.pem").exists()


def test_removal_that_is_interrupted_has_deleted_the_lock_last(owner, monkeypatch):
    process, directory = owner
    process.kill()
    process.wait()
    for number in range(20):
        (directory / f"{number}.pem").write_text("secret")
    unlink = os.unlink

    def interrupted(path, **options):
        unlink(path, **options)
        if Path(path).name == lock_name():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            private_directory("tls")
    assert [*directory.iterdir()] == []


def test_directory_with_a_file_that_cannot_be_deleted_keeps_its_lock(owner, monkeypatch):
    process, directory = owner
    process.kill()
    process.wait()
    unlink = os.unlink

    def refusing(path, **options):
        if Path(path).name == "key.pem":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing)
        private_directory("tls")
    assert (directory / "key.pem").exists()
    private_directory("tls")
    assert not directory.exists()


def test_directories_of_other_hosts_stay(owner, monkeypatch):
    process, directory = owner
    process.kill()
    process.wait()
    with monkeypatch.context() as patched:
        # A lock of another host may not be seen here: its process may be running.
        patched.setattr(platform, "node", lambda: "another")
        private_directory("tls")
    assert directory.exists()
    private_directory("tls")
    assert not directory.exists()

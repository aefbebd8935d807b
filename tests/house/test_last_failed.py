"""``pytest --lf`` runs what has failed in all parts of ``make test``, which end beside each other."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import last_failed
import pytest

TESTS = Path(__file__).parents[1]

CONFTEST = f"""
import sys

sys.path.insert(0, {str(TESTS)!r})
import last_failed

pytest_configure = last_failed.register
"""

WAITING = """
import time
from pathlib import Path


def test_waits():
    Path("begun").touch()
    deadline = time.monotonic() + 100
    while not Path("goes-on").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Path("passes").exists()
"""

OTHER = """
from pathlib import Path


def test_fails():
    assert Path("passes").exists()
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that starts pytest with one file of a folder with two."""
    for name, text in {"conftest.py": CONFTEST, "test_waiting.py": WAITING, "test_other.py": OTHER}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def start(*arguments):
        command = [sys.executable, "-m", "pytest", "-q", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)

    return start


def failed(folder):
    """What the cache of a folder has."""
    return sorted(json.loads((folder / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text()))


@pytest.mark.parametrize("processes", [(), ("--numprocesses", "1")])
def test_run_that_ends_last_keeps_what_has_failed_and_passed_in_the_other_one(run, tmp_path, processes):
    for passes in (False, True):
        if passes:
            (tmp_path / "passes").touch()
        for name in ("begun", "goes-on"):
            (tmp_path / name).unlink(missing_ok=True)
        longer = run("test_waiting.py", *processes)
        deadline = time.monotonic() + 100
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert run("test_other.py", *processes).wait(100) == (not passes)
        assert longer.poll() is None
        (tmp_path / "goes-on").touch()
        assert longer.wait(100) == (not passes)
        if passes:
            assert failed(tmp_path) == []
        else:
            assert failed(tmp_path) == ["test_other.py::test_fails", "test_waiting.py::test_waits"]


def test_run_with_failures_of_others_runs_only_these(run, tmp_path):
    assert run("test_other.py").wait(100) == 1
    assert run("--lf").wait(100) == 1
    assert not (tmp_path / "begun").exists()
    assert failed(tmp_path) == ["test_other.py::test_fails"]


def test_runs_that_end_at_once_keep_the_failures_of_both(tmp_path, monkeypatch):
    noted = {last_failed.KEY: {}}
    folder = tmp_path / "last_failed"
    folder.mkdir()
    cache = SimpleNamespace(get=noted.get, set=noted.__setitem__, mkdir=lambda name: folder)
    runs = [last_failed.LastFailed(cache) for _ in range(2)]

    def end(run, name):
        """End a run as pytest does, which notes what has failed in it between the steps."""
        finish = runs[run].pytest_sessionfinish()
        next(finish)
        yield
        cache.set(last_failed.KEY, {name: True})
        with pytest.raises(StopIteration):
            finish.send(None)

    first = end(0, "first")
    next(first)
    waits = threading.Event()
    lock = fcntl.flock

    def locking(file, how):
        waits.set()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locking)

    def end_second():
        list(end(1, "second"))
        waits.set()

    second = threading.Thread(target=end_second)
    second.start()
    assert waits.wait(100)
    assert next(first, None) is None
    second.join(100)
    assert noted[last_failed.KEY] == {"first": True, "second": True}


def test_run_ends_although_its_cache_cannot_be_written(tmp_path):
    (tmp_path / "test_fails.py").write_text("def test_fails():\n    assert False\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "no-folder").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-o", "cache_dir=no-folder/cache", "test_fails.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr

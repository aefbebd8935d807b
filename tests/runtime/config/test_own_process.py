"""Garbage collection leaves out modules in a scheduler's own process, and nothing in a user's."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from distributed.cli import dask_scheduler

from dask_elastic.runtime.config import own_process
from dask_elastic.runtime.config.own_process import is_own_process, leave_out_modules, leave_out_worker_modules


def main_module(file=None, module=None):
    made = ModuleType("__main__")
    made.__file__ = file
    made.__spec__ = None if module is None else ModuleSpec(module, None)
    return made


@pytest.mark.parametrize(
    ("main", "own"),
    [
        (main_module("/venv/bin/dask"), True),
        (main_module("/venv/bin/dask-scheduler"), True),
        (main_module("/venv/bin/dask-worker"), True),
        (main_module(module="dask.__main__"), True),
        (main_module(module="distributed.cli.dask_scheduler"), True),
        (main_module(module="distributed.cli.dask_spec"), True),
        (main_module("/home/me/dask_flights.py"), False),
        (main_module(module="ipykernel_launcher"), False),
        (main_module(module="dask_elastic.__main__"), False),
        (main_module(), False),
    ],
)
def test_own_process_is_told_from_that_of_a_program(main, own):
    assert is_own_process(main) is own


def test_tests_are_no_process_of_a_scheduler():
    assert not is_own_process()


@pytest.mark.parametrize("own", [True, False])
def test_collection_leaves_out_what_is_there_in_a_process_of_its_own(own, monkeypatch):
    frozen = []
    monkeypatch.setattr(own_process, "is_own_process", lambda: own)
    monkeypatch.setattr(own_process, "_FROZEN", False)
    monkeypatch.setattr(own_process.gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(own_process.atexit, "register", lambda function: None)
    monkeypatch.setattr(own_process.gc, "set_threshold", lambda *given: None)
    # A second installation of the plugin freezes nothing of the first one.
    leave_out_modules()
    leave_out_modules()
    assert frozen == [True] * own


@pytest.mark.parametrize(
    ("own", "has_nanny", "executed", "freezes"),
    [
        (True, False, 0, True),
        (False, True, 0, True),
        (False, False, 0, False),
        (True, False, 1, False),
        (False, True, 3, False),
    ],
)
def test_collection_leaves_out_modules_of_a_worker_that_has_executed_nothing(
    own, has_nanny, executed, freezes, monkeypatch
):
    """What users' tasks have left in a worker is collected, and so is what a notebook has beside its workers."""
    frozen = []
    monkeypatch.setattr(own_process, "is_own_process", lambda: own)
    monkeypatch.setattr(own_process, "_FROZEN", False)
    monkeypatch.setattr(own_process.gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(own_process.atexit, "register", lambda function: None)
    # A second installation of the plugin would freeze what jobs have left.
    leave_out_worker_modules(has_nanny, executed)
    leave_out_worker_modules(has_nanny, executed)
    assert frozen == [True] * freezes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2_100, 30, 30), (2_100, 2, 319)),
        ((700, 10, 10), (700, 10, 10)),
        ((6_000, 30, 30), (6_000, 1, 479)),
        ((0, 10, 10), (0, 10, 10)),
        ((10_000, 1, 5), (10_000, 1, 5)),
        # Python's own ones of 3.13, and some that users set: the last ones are the most that Python takes.
        ((2_000, 10, 10), (2_000, 10, 10)),
        ((50_000, 20, 100), (50_000, 20, 100)),
        ((2_100, 30, 2**31 - 1), (2_100, 30, 2**31 - 1)),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_middle_collections_are_short_and_full_ones_as_rare_in_a_process_of_its_own(own, before, after, monkeypatch):
    now = [before]
    monkeypatch.setattr(own_process, "is_own_process", lambda: own)
    monkeypatch.setattr(own_process, "_FROZEN", False)
    monkeypatch.setattr(own_process.gc, "freeze", lambda: None)
    monkeypatch.setattr(own_process.atexit, "register", lambda function: None)
    monkeypatch.setattr(own_process.gc, "get_threshold", lambda: now[0])
    monkeypatch.setattr(own_process.gc, "set_threshold", lambda *given: now.insert(0, given))
    leave_out_modules()
    # From Python 3.14 on, thresholds have another meaning, and stay.
    assert now[0] == (after if own and sys.version_info < (3, 14) else before)


@pytest.mark.parametrize("given", [(50_000, 20, 100), (2_100, 30, 2**31 - 1)])
def test_thresholds_of_users_are_kept_by_a_process_of_its_own(given, monkeypatch):
    monkeypatch.setattr(own_process, "is_own_process", lambda: True)
    monkeypatch.setattr(own_process, "_FROZEN", False)
    monkeypatch.setattr(own_process.gc, "freeze", lambda: None)
    monkeypatch.setattr(own_process.atexit, "register", lambda function: None)
    before = gc.get_threshold()
    gc.set_threshold(*given)
    try:
        leave_out_modules()
        assert gc.get_threshold() == given
    finally:
        gc.set_threshold(*before)


def test_thresholds_of_a_collector_that_is_switched_off_are_kept(monkeypatch):
    """A user who switches it on again finds the thresholds as they were."""
    now = [(2_100, 30, 30)]
    monkeypatch.setattr(own_process, "is_own_process", lambda: True)
    monkeypatch.setattr(own_process, "_FROZEN", False)
    monkeypatch.setattr(own_process.gc, "freeze", lambda: None)
    monkeypatch.setattr(own_process.gc, "isenabled", lambda: False)
    monkeypatch.setattr(own_process.atexit, "register", lambda function: None)
    monkeypatch.setattr(own_process.gc, "get_threshold", lambda: now[0])
    monkeypatch.setattr(own_process.gc, "set_threshold", lambda *given: now.insert(0, given))
    leave_out_modules()
    assert now == [(2_100, 30, 30)]


def test_dask_triples_the_thresholds_of_its_scheduler():
    """Otherwise nothing is left to lower, or other thresholds are."""
    program = inspect.getsource(dask_scheduler.main.callback)
    assert "gc.set_threshold(g0 * 3, g1 * 3, g2 * 3)" in program


PRELOADED = """
class Log:
    def __init__(self, path):
        self.itself = self
        self.file = open(path, "w")
        self.file.write("the last rows")
"""


def test_files_that_preloaded_modules_have_open_are_written_at_the_end_of_the_process(tmp_path):
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import preloaded
from dask_elastic.runtime.config import own_process

preloaded.log = preloaded.Log({str(tmp_path / "rows")!r})
own_process.is_own_process = lambda: True
own_process.leave_out_modules()
assert own_process.gc.get_freeze_count() > 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert (tmp_path / "rows").read_text() == "the last rows"

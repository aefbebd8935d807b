"""The thread that runs idle tasks: what is left to it, in order, also while a run is blocked."""

from __future__ import annotations

import threading

import pytest

from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.run_thread import RunThread
from dask_elastic.runtime.worker.job_threads import JobThreads

SECONDS = 20.0


def started(errors):
    """Return threads of a job in which none counts as blocked that the system suspends in a run."""
    made = JobThreads("job", errors.append)
    made.runs = RunThread(made, clock=lambda: 0.0)
    return made


@pytest.fixture
def threads():
    """Threads of a job, which fail the test on an error."""
    errors = []
    made = started(errors)
    yield made
    made.end()
    assert made.join(SECONDS) == []
    assert errors == []


def test_runs_are_carried_out_in_order_by_one_thread(threads):
    done, last = [], threading.Event()
    for number in range(50):
        assert threads.leave_run(lambda number=number: done.append((number, threads.runs.is_current)))
    assert threads.leave_run(last.set)
    assert last.wait(SECONDS)
    assert done == [(number, True) for number in range(50)]
    assert not threads.runs.is_current


def test_idle_thread_is_woken_by_the_next_run(threads):
    for _ in range(20):
        done = threading.Event()
        assert threads.leave_run(done.set)
        assert done.wait(SECONDS)


def test_nothing_is_left_to_a_blocked_thread_and_what_waits_is_overdue(threads):
    now, began, resume, done = [0.0], threading.Event(), threading.Event(), []
    runs = RunThread(threads, clock=lambda: now[0])

    def block():
        began.set()
        resume.wait(SECONDS)

    assert runs.leave(block)
    assert began.wait(SECONDS)
    assert runs.leave(lambda: done.append("waits"))
    assert runs.overdue() == []
    now[0] = 1.0
    assert not runs.leave(lambda: done.append("refused"))
    (waits,) = runs.overdue()
    waits()
    assert runs.overdue() == []
    last = threading.Event()
    resume.set()
    while not runs.leave(last.set):
        pass
    assert last.wait(SECONDS)
    assert done == ["waits"]
    threads.end()
    runs.wake()


def test_thread_is_blocked_too_while_it_carries_out_what_a_run_has_deferred(threads):
    now, began, resume, done = [0.0], threading.Event(), threading.Event(), threading.Event()
    runs = RunThread(threads, clock=lambda: now[0])

    def block():
        began.set()
        resume.wait(SECONDS)

    assert runs.leave(lambda: DEFERRED.run(block))
    assert began.wait(SECONDS)
    assert runs.leave(done.set)
    now[0] = 1.0
    refused, overdue = not runs.leave(done.clear), runs.overdue()
    threads.end()
    runs.wake()
    resume.set()
    assert refused
    for run in overdue:
        run()
    assert done.is_set()


class Writer:
    """A connection on which messages wait."""

    def __init__(self):
        self.written = 0

    def write_deferred(self):
        """Count the writes."""
        self.written += 1


def test_what_a_blocked_thread_has_deferred_is_written(threads):
    now, began, resume, writer = [0.0], threading.Event(), threading.Event(), Writer()
    runs = RunThread(threads, clock=lambda: now[0])

    def block():
        DEFERRED.write(writer)
        began.set()
        resume.wait(SECONDS)

    assert runs.leave(block)
    assert began.wait(SECONDS)
    runs.overdue()
    before = writer.written
    now[0] = 1.0
    runs.overdue()
    written = writer.written
    threads.end()
    runs.wake()
    resume.set()
    assert (before, written) == (0, 1)


def test_nothing_is_left_once_the_job_has_ended(threads):
    threads.end()
    assert not threads.leave_run(lambda: None)


def test_error_in_a_run_fails_the_job_and_the_next_run_is_carried_out():
    errors, last = [], threading.Event()
    threads = started(errors)
    assert threads.leave_run(lambda: 1 // 0)
    assert threads.leave_run(last.set)
    assert last.wait(SECONDS)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    threads.end()
    assert threads.join(SECONDS) == []

"""The thread that runs idle tasks: what is left to it, in order, also while a run is blocked."""

from __future__ import annotations

import functools
import threading
import time
from queue import SimpleQueue

import pytest

from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.run_thread import HELP_SECONDS, RunThread
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


# threads that read a connection


class Reader:
    """A thread that reads a connection: it carries out one block at a time, as a packet of another node."""

    def __init__(self):
        self.blocks, self.ended = SimpleQueue(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        DEFERRED.relieved(lambda: None)
        while (block := self.blocks.get()) is not None:
            with DEFERRED:
                block()

    def close(self):
        self.blocks.put(None)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


@pytest.fixture
def reader():
    made = Reader()
    yield made
    made.close()


def test_thread_that_reads_carries_out_what_it_leaves_behind_the_whole_packet(threads, reader):
    done, last = [], threading.Event()

    def block():
        for number in range(3):
            assert threads.leave_run(lambda number=number: note(number))
        done.append("handled")
        DEFERRED.run(lambda: done.append("deferred"))

    def note(number):
        done.append((number, threading.current_thread(), threads.runs.is_current))
        if number == 0:
            # What a run leaves is carried out behind all that was left before.
            assert threads.leave_run(lambda: note("more"))
        if number == "more":
            last.set()

    reader.blocks.put(block)
    assert last.wait(SECONDS)
    assert done == ["handled", "deferred", *((number, reader.thread, True) for number in (0, 1, 2, "more"))]
    assert threads.join(SECONDS) == []
    assert not threads.runs.is_current


def note_thread(by, ran):
    """Note the name of the thread that carries this out."""
    by.append(threading.current_thread().name)
    ran.set()


def test_own_thread_carries_out_what_one_that_reads_may_not(threads, reader):
    threads.runs = RunThread(threads, clock=lambda: 0.0, may_help=lambda: False)
    for _ in range(20):
        ran, by = threading.Event(), []
        run = functools.partial(note_thread, by, ran)
        reader.blocks.put(functools.partial(threads.leave_run, run))
        assert ran.wait(SECONDS)
        assert by == ["elastic-job-runs"]


def test_thread_that_reads_leaves_the_rest_to_the_own_thread_after_some_time(threads, reader):
    now, by, last = [0.0], [], threading.Event()
    runs = RunThread(threads, clock=lambda: now[0])

    def run(number):
        by.append((number, threading.current_thread().name))
        if number == 1:
            now[0] += 2 * HELP_SECONDS
        if number == 3:
            last.set()

    def block():
        for number in range(4):
            assert runs.leave(lambda number=number: run(number))

    reader.blocks.put(block)
    assert last.wait(SECONDS)
    own = "elastic-job-runs"
    assert by == [(0, reader.thread.name), (1, reader.thread.name), (2, own), (3, own)]
    threads.end()
    runs.wake()


@pytest.fixture
def readers():
    made = [Reader() for _ in range(4)]
    yield made
    for one in made:
        one.close()


def blocking():
    """Return a run that blocks, and the events that say that it has begun and let it go on."""
    began, resume = threading.Event(), threading.Event()

    def run():
        began.set()
        assert resume.wait(SECONDS)

    return run, began, resume


def test_own_thread_carries_out_what_a_thread_that_reads_has_left_and_is_blocked_before(threads, reader):
    run, began, resume = blocking()
    by, ran = [], threading.Event()

    def block():
        assert threads.leave_run(lambda: (by.append(threading.current_thread().name), ran.set()))
        DEFERRED.run(run)

    reader.blocks.put(block)
    assert began.wait(SECONDS)
    assert by == []
    assert threads.overdue() == []
    assert ran.wait(SECONDS)
    resume.set()
    assert by == ["elastic-job-runs"]


def test_who_carries_out_runs_takes_those_of_all_other_threads(threads, readers):
    run, began, resume = blocking()
    by, left, last = [], threading.Event(), threading.Event()
    readers[0].blocks.put(lambda: threads.leave_run(run))
    assert began.wait(SECONDS)
    readers[1].blocks.put(lambda: (threads.leave_run(lambda: by.append(threading.current_thread())), left.set()))
    assert left.wait(SECONDS)
    assert threads.leave_run(lambda: (by.append(threading.current_thread()), last.set()))
    assert by == []
    resume.set()
    assert last.wait(SECONDS)
    assert by == [readers[0].thread] * 2
    # The own thread was not needed.
    assert threads._threads == []


def test_thread_that_left_a_run_does_not_carry_it_out_beside_another_one(threads, readers):
    run, began, resume = blocking()
    by, left, last = [], threading.Event(), threading.Event()

    def block():
        # No thread carries out runs yet, so this thread is to help.
        assert threads.leave_run(lambda: None)
        left.set()
        assert began.wait(SECONDS)
        assert threads.leave_run(lambda: (by.append(threading.current_thread()), last.set()))

    ended = threading.Event()
    readers[0].blocks.put(block)
    assert left.wait(SECONDS)
    readers[1].blocks.put(lambda: threads.leave_run(run))
    readers[0].blocks.put(ended.set)
    assert ended.wait(SECONDS)
    assert by == []
    resume.set()
    assert last.wait(SECONDS)
    assert by == [readers[1].thread]


def test_own_thread_ends_only_its_own_turn(threads, readers):
    runs, (run, began, resume) = threads.runs, blocking()
    following, current, ends = runs._next, [], threading.Event()

    def next_of():
        found = following()
        if found[0] is None and threading.current_thread().name == "elastic-job-runs" and not began.is_set():
            # Before the own thread goes on, another one begins.
            readers[0].blocks.put(lambda: runs.leave(lambda: (run(), current.append(runs.is_current), ends.set())))
            assert began.wait(SECONDS)
        return found

    runs._next = next_of
    assert threads.leave_run(lambda: None)
    assert began.wait(SECONDS)
    # The own thread waits, once what it has been woken for is done.
    deadline = time.monotonic() + SECONDS
    while not runs._idle:
        assert time.monotonic() < deadline, "the own thread does not wait"
        time.sleep(0.001)
    resume.set()
    assert ends.wait(SECONDS)
    assert current == [True]


def test_runs_of_many_threads_are_each_carried_out_once_and_one_at_a_time(threads, readers):
    count, each = [], 300
    at_work, overlaps = [], []

    def run(number):
        at_work.append(number)
        if len(at_work) > 1:
            overlaps.append(number)
        count.append(number)
        at_work.remove(number)

    for number in range(each):
        for place, reader in enumerate(readers):
            reader.blocks.put(lambda one=(place, number): threads.leave_run(lambda: run(one)))
        assert threads.leave_run(lambda one=("main", number): run(one))
    deadline = time.monotonic() + SECONDS
    while len(count) < 5 * each:
        assert time.monotonic() < deadline, f"{len(count)} of {5 * each} runs have been carried out"
        time.sleep(0.001)
    assert sorted(map(str, count)) == sorted(map(str, {*count}))
    assert overlaps == []


def test_nothing_is_left_to_a_blocked_thread_that_reads_and_the_end_waits_for_it(threads, reader):
    now, began, resume, done = [0.0], threading.Event(), threading.Event(), []
    threads.runs = runs = RunThread(threads, clock=lambda: now[0])

    def block():
        began.set()
        assert resume.wait(SECONDS)

    reader.blocks.put(lambda: (runs.leave(block), runs.leave(lambda: done.append("waits"))))
    assert began.wait(SECONDS)
    now[0] = 1.0
    assert not runs.leave(lambda: done.append("refused"))
    (waits,) = runs.overdue()
    waits()
    threads.end()
    assert threads.join(0.0) == ["elastic-reader"]
    left, waiting = [], threading.Thread(target=lambda: left.extend(threads.join(10 * SECONDS)), daemon=True)
    waiting.start()
    deadline = time.monotonic() + SECONDS
    while not runs._free._waiters:
        assert time.monotonic() < deadline, "nothing waits for the end of the run"
        time.sleep(0.001)
    resume.set()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert (done, left) == (["waits"], [])


def test_runs_are_dropped_once_the_job_has_ended(threads, reader):
    done, handled = [], threading.Event()

    def block():
        assert threads.leave_run(lambda: done.append("ended"))
        threads.end()

    reader.blocks.put(block)
    reader.blocks.put(handled.set)
    assert handled.wait(SECONDS)
    assert threads.join(SECONDS) == []
    assert done == []


def test_thread_that_cannot_be_started_for_the_rest_fails_the_job(reader):
    errors, failed = [], threading.Event()
    threads = JobThreads("job", lambda error: (errors.append(error), failed.set()))
    threads.runs = RunThread(threads, clock=lambda: 0.0, may_help=lambda: False)

    def refuse(name, run):
        raise RuntimeError("can't start new thread")

    threads.start = refuse
    reader.blocks.put(lambda: threads.leave_run(lambda: None))
    assert failed.wait(SECONDS)
    (error,) = errors
    assert "new thread" in str(error)
    threads.end()

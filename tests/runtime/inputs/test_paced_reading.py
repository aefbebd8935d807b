"""The rows of one tick of a source with a rate leave together, in the thread that reads them."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.connectors.sources.iterable import Iterable
from dask_elastic.meters.prompt_reads import REMEMBERED
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.sources import source_thread
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.topology.ticks import TICK_SECONDS, Ticks
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SECONDS = 60
RATE = 500.0
TICK = 0.02
ROWS = REMEMBERED + 400


class Departed:
    """An exchange that notes the rows of each batch that leaves, and the thread."""

    def __init__(self):
        self.idle_watch = SimpleNamespace(note=lambda: None)
        self.batches = []
        self.left = []

    def deliver_now(self, origin, outputs):
        name = threading.current_thread().name
        self.left += [time.monotonic() for _, batch in outputs for _ in range(batch.rows.num_rows)]
        self.batches += [(batch.rows["n"].to_pylist(), name) for _, batch in outputs]
        return 0, ()

    def emit_barrier(self, barrier):
        raise AssertionError("this job has no checkpoints")

    def join_bytes(self, origin):
        return None

    def backpressured(self, origin):
        return 0.0

    @property
    def numbers(self):
        return [number for numbers, _ in list(self.batches) for number in numbers]


@pytest.fixture
def run(monkeypatch):
    """Run a source whose ticks have a constant length; yields its exchange, and waits for its end."""
    ticks = Ticks()
    ticks.interval = TICK
    monkeypatch.setattr(Ticks, "is_due", lambda self, now: False)
    monkeypatch.setattr(source_thread, "TICKS", ticks)
    started = []

    def start(items, **options):
        exchange, ended, errors = Departed(), threading.Event(), []
        threads = JobThreads("job", errors.append)
        emitter = SimpleNamespace(
            emit=lambda batches, due: [(ExecutorId("out", 0), Batch(rows, None, due)) for rows in batches]
        )
        source = SourceThread(
            ExecutorId("rows", 0), Iterable(items, rate=RATE), 1, emitter, Mailbox(), None, threads, exchange,
            None, None, lambda identity: ended.set(), None, SourcePosition(), **options,
        )  # fmt: skip
        source.start()
        started.append((source, threads, ended, errors))
        return exchange, ended

    yield start
    for source, threads, ended, errors in started:
        source.abort()
        assert ended.is_set()
        assert threads.join(SECONDS) == []
        assert errors == []


def wait_for(condition, otherwise):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.001)


def single(number):
    return pa.record_batch({"n": [number]})


def test_rows_of_a_tick_leave_together_in_the_reading_thread(run, monkeypatch):
    # A read that the system suspends must not count as one that waits for its source.
    monkeypatch.setattr("dask_elastic.meters.prompt_reads.PROMPT_SECONDS", SECONDS)
    enough = threading.Event()
    exchange, ended = run(lambda: map(single, itertools.takewhile(lambda _: not enough.is_set(), itertools.count())))

    def tick_was_read():
        return any(len(rows) == RATE * TICK and thread.endswith("reader") for rows, thread in list(exchange.batches))

    wait_for(tick_was_read, "no tick was read in time")
    enough.set()
    assert ended.wait(SECONDS)
    assert exchange.numbers == list(range(len(exchange.numbers)))


def test_rows_leave_while_the_source_is_blocked_in_the_middle_of_a_tick(run):
    released, begun = threading.Event(), ROWS - 5

    def items():
        for number in range(ROWS):
            if number == begun:
                assert released.wait(SECONDS)
            yield single(number)

    exchange, ended = run(items)
    wait_for(lambda: len(exchange.numbers) == begun, "rows wait for the next one")
    assert not ended.is_set()
    released.set()
    assert ended.wait(SECONDS)
    assert exchange.numbers == list(range(ROWS))


def test_rows_of_a_source_that_waits_now_and_then_are_sent_without_it(run):
    released = threading.Event()

    def items():
        for number in range(300):
            if number % 100 == 50:
                released.wait(0.005)
            yield single(number)

    exchange, ended = run(items)
    assert ended.wait(SECONDS)
    assert exchange.numbers == list(range(300))


def test_last_rows_leave_although_their_tick_is_not_complete(run):
    exchange, ended = run(lambda: (single(number) for number in range(REMEMBERED + 3)))
    assert ended.wait(SECONDS)
    assert exchange.numbers == list(range(REMEMBERED + 3))


def test_rows_of_a_busy_process_leave_when_they_are_due_with_a_tick_of_a_millisecond(run):
    enough = threading.Event()
    items = itertools.takewhile(lambda _: not enough.is_set(), itertools.count())
    exchange, ended = run(lambda: map(single, items), longest_tick=TICK_SECONDS)

    def leave_apart():
        # Where the system does not suspend the threads: with ticks of 20 ms, ten rows leave together.
        left = exchange.left[-50:]
        return sum(after - before > RATE**-1 / 2 for before, after in itertools.pairwise(left)) > 25

    wait_for(leave_apart, "rows wait for a tick")
    enough.set()
    assert ended.wait(SECONDS)
    assert exchange.numbers == list(range(len(exchange.numbers)))

"""The driver of an executor on a host that performs every act at once and keeps what was asked for."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor.drivers.executor_driver import ExecutorDriver
from dask_elastic.executor.drivers.processing import processed
from dask_elastic.executor.drivers.steps import run
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import Haste
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId

ME, ROWS, NEXT = ExecutorId("per_key", 0), ExecutorId("rows", 0), ExecutorId("next", 0)


class Bell:
    """Counts its rings."""

    def __init__(self):
        self.rings = 0

    def ring(self):
        """Count."""
        self.rings += 1

    def wait(self):
        """Never called: tests stop where a thread would wait."""
        raise AssertionError("a test waits")


class Lock:
    """Tells how deep it is held."""

    def __init__(self):
        self.depth = 0

    def acquire(self):
        """Count up."""
        self.depth += 1

    def release(self):
        """Count down."""
        self.depth -= 1


class Host:
    """Performs nothing; `reachable` nodes take messages."""

    ended = False

    def __init__(self):
        self.reachable = {1, 2}
        self.sent = []
        self.started = []
        self.released = []
        self.runs = None
        self.calling = Haste.BRINGS
        self.control = None

    def now(self):
        """No time passes."""
        return 0.0

    def bell(self):
        """Make a bell."""
        return Bell()

    def lock(self):
        """Make the lock."""
        self.control = Lock()
        return self.control

    def start(self, name, steps):
        """Keep the name; the steps are never run."""
        self.started.append(name)

    def send(self, node, message):
        """Keep the message, if its node is reachable."""
        if node in self.reachable:
            self.sent.append(message)
        return node in self.reachable

    def leave(self, steps):
        """Leave nothing."""
        return False

    def leave_run(self, steps):
        """Keep the steps, if another thread runs idle tasks."""
        if self.runs is not None:
            self.runs.append(steps)
        return self.runs is not None

    def haste(self):
        """Return what the calling thread does."""
        return self.calling

    def release(self, origin, nbytes, wanted_more=False, is_part=False):
        """Keep the credit."""
        self.released.append((origin, nbytes))


def rows(count):
    return Batch(pa.record_batch({"k": range(count)}), np.arange(count, dtype=np.uint64) << np.uint64(54), 0.0)


def step(steps, result):
    """Resume steps with the result of their last act; returns the next one, or None at the end."""
    try:
        return steps.send(result)
    except StopIteration:
        return None


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def driver(host):
    """An executor whose only task is on node 1."""
    made = ExecutorDriver(ElasticExecutor(ME, KeySpace(1, 4), 0, {1: 1}, [ROWS]), host)
    run(made.start())
    return made


class InlineHost(Host):
    """Processes batches at once; `room` outputs find credit."""

    def __init__(self):
        super().__init__()
        self.room = 10
        self.delivered = []

    @contextmanager
    def processor(self, task):
        """Return something."""
        yield f"logic of {task}"

    def process(self, processor, batch):
        """Return two outputs."""
        assert processor == "logic of 0"
        return [Delivery(NEXT, batch), Delivery(NEXT, batch)], 0.0001

    def defer(self, steps):
        """Defer nothing."""
        return False

    def deliver_now(self, deliveries):
        """Take what finds credit."""
        fits, left = deliveries[: self.room], deliveries[self.room :]
        self.delivered += fits
        self.room -= len(fits)
        return left

    def deliver(self, deliveries):
        """Take everything."""
        self.delivered += deliveries


@pytest.fixture
def home():
    """An executor whose only task is at home, idle, and known to be fast."""
    host = InlineHost()
    made = ExecutorDriver(ElasticExecutor(ME, KeySpace(1, 4), 0, {0: 1}, [ROWS]), host)
    run(made.start())
    for _ in range(5):
        made.executor.measures.inline.add(1, 0.00001)
    made.thread = made._run_task(0)
    assert next(made.thread) == made._bells[0].wait
    return made


def test_short_batch_for_an_idle_task_is_processed_by_the_caller(home):
    run(home.offer(ROWS, rows(3), 100))
    assert len(home.host.delivered) == 2
    assert home.host.released == [(ROWS, 100)]
    assert home._bells[0].rings == 0
    assert home.executor.routes.tasks[0].sleeping


def test_long_batch_is_left_to_the_thread_of_the_task(home):
    run(home.offer(ROWS, rows(1000), 100))
    assert home.host.delivered == []
    assert home._bells[0].rings == 1


def test_batch_for_a_task_that_runs_is_left_to_its_thread(home):
    home.executor.routes.tasks[0].sleeping = False
    run(home.offer(ROWS, rows(3), 100))
    assert home.host.delivered == []
    assert home._bells[0].rings == 0


def test_outputs_without_credit_are_delivered_by_the_thread_of_the_task(home):
    home.host.room = 1
    run(home.offer(ROWS, rows(3), 100))
    assert (len(home.host.delivered), home.host.released, home._bells[0].rings) == (1, [], 1)
    run(home.offer(ROWS, rows(3), 100))
    assert home._bells[0].rings == 1, "the task is not idle"
    act = home.thread.send(None)
    while act != home._bells[0].wait:
        act = home.thread.send(act())
    assert len(home.host.delivered) == 4
    assert home.host.released == [(ROWS, 100)] * 2


def test_batch_that_arrives_during_an_inline_run_wakes_the_task(home):
    steps = home.offer(ROWS, rows(3), 100)
    act = next(steps)
    while getattr(act, "func", None) is not processed:
        act = steps.send(act())
    run(home.offer(ROWS, rows(2), 50))
    assert home._bells[0].rings == 0
    while act is not None:
        act = step(steps, act())
    assert home._bells[0].rings == 1


def test_brief_batch_that_is_too_long_for_a_reading_thread_is_left_to_one_that_runs_tasks(home):
    home.host.runs, home.host.calling = [], Haste.READS
    run(home.offer(ROWS, rows(60), 100))
    assert (home.host.delivered, home._bells[0].rings, len(home.host.runs)) == ([], 0, 1)
    home.host.calling = Haste.RUNS
    run(home.host.runs.pop())
    assert (len(home.host.delivered), home._bells[0].rings, home.host.runs) == (2, 0, [])
    assert home.executor.routes.tasks[0].sleeping


def test_batch_of_many_rows_is_not_left_to_a_thread_that_runs_tasks(home):
    home.host.runs, home.host.calling = [], Haste.READS
    run(home.offer(ROWS, rows(300), 100))
    assert (home._bells[0].rings, home.host.runs) == (1, [])


def test_left_run_that_has_grown_too_long_wakes_the_task(home):
    home.host.runs, home.host.calling = [], Haste.READS
    run(home.offer(ROWS, rows(100), 100))
    run(home.offer(ROWS, rows(200), 100))
    home.host.calling = Haste.RUNS
    run(home.host.runs.pop())
    assert (home.host.delivered, home._bells[0].rings) == ([], 1)


@pytest.fixture
def emitting():
    """An executor whose only task is on node 1, which has a sub-batch; another thread runs idle tasks."""
    host = InlineHost()
    host.runs = []
    made = ExecutorDriver(ElasticExecutor(ME, KeySpace(1, 4), 0, {1: 1}, [ROWS]), host)
    run(made.start())
    run(made.offer(ROWS, rows(3), 100))
    outputs = tuple(Delivery(NEXT, rows(count)) for count in (1, 2))
    run(made.receive(m.Outputs(0, 0, outputs)))
    run(made.receive(m.Done(0, 0, 0.01)))
    return made


def test_outputs_of_a_remote_task_leave_in_a_thread_that_runs_tasks(emitting):
    host = emitting.host
    assert (host.delivered, host.released, len(host.runs)) == ([], [], 1)
    run(host.runs.pop())
    assert ([output.batch.rows.num_rows for output in host.delivered], host.released) == ([1, 2], [(ROWS, 100)])
    assert emitting._emitter.bell.rings == 0


def test_outputs_of_a_remote_task_that_lack_credit_leave_in_the_thread_of_the_emitter(emitting):
    host = emitting.host
    host.room = 1
    run(host.runs.pop())
    assert (len(host.delivered), host.released, emitting._emitter.bell.rings) == (1, [], 1)
    thread = emitting._emitter._run()
    assert next(thread) == emitting._emitter.bell.wait
    act = thread.send(None)
    while act != emitting._emitter.bell.wait:
        act = thread.send(act())
    assert ([output.batch.rows.num_rows for output in host.delivered], host.released) == ([1, 2], [(ROWS, 100)])


def test_loss_of_a_node_behind_outputs_is_handled_in_the_thread_of_the_emitter(emitting):
    emitting.node_left(1, died=False)
    assert emitting._emitter.bell.rings == 0, "outputs are before it"
    run(emitting.host.runs.pop())
    assert (len(emitting.host.delivered), emitting._emitter.bell.rings) == (2, 1)


def test_batch_for_a_remote_task_is_sent_by_the_caller(driver, host):
    run(driver.offer(ROWS, rows(3), 100))
    assert [type(message) for message in host.sent] == [m.StartTask, m.SubBatch]
    assert driver.processing_on(1) == {0: "3 rows, from rows[0]"}


def test_batch_that_was_never_sent_is_not_being_processed(driver, host):
    host.reachable.clear()
    run(driver.offer(ROWS, rows(3), 100))
    assert driver.executor.routes.tasks[0].in_flight
    assert driver.processing_on(1) == {}


def test_empty_batch_returns_its_credit_at_once(driver, host):
    run(driver.offer(ROWS, rows(0), 100))
    run(driver.offer(ROWS, rows(0), 0))
    assert host.released == [(ROWS, 100)]
    assert len(host.sent) == 1, "no sub-batch"


def test_outputs_and_what_follows_them_are_left_to_the_emitter(driver, host):
    run(driver.offer(ROWS, rows(3), 100))
    run(driver.receive(m.Outputs(0, 0, ())))
    run(driver.receive(m.Done(0, 0, 0.01)))
    assert host.released == [], "the sub-batch is settled behind its outputs"
    assert driver._emitter.bell.rings == 1, "who handles the outputs handles what is behind them"


def test_answer_without_outputs_before_it_is_taken_by_the_caller(driver, host):
    run(driver.offer(ROWS, rows(3), 100))
    run(driver.receive(m.Done(0, 0, 0.01)))
    assert host.released == [(ROWS, 100)]


def test_link_is_cut_as_soon_as_a_node_has_left(driver, host):
    driver.node_left(1, died=True)
    assert driver.executor.links.is_cut(1)
    assert driver.has_suspects
    assert host.started == ["emitter"]
    assert driver._emitter.bell.rings == 1


def test_control_lock_is_released_when_an_act_raises(driver, host):
    def send(node, message):
        raise OSError("broken")

    host.send = send
    with pytest.raises(OSError, match="broken"):
        run(driver.set_cores(1, {1: 1, 2: 1}))
    assert host.control.depth == 0


def test_all_shards_of_a_task_move_to_another_node_without_recursion(host):
    shards = 2_000
    driver = ExecutorDriver(ElasticExecutor(ME, KeySpace(1, shards), 0, {0: 1}, [ROWS]), host)
    run(driver.start())
    run(driver.set_cores(1, {1: 1}))
    assert sum(isinstance(message, m.Install) for message in host.sent) == shards
    assert driver.executor.routes.table.shards_of(1).tolist() == list(range(shards))

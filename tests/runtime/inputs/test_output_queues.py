"""The ledger of an output queue, against a plain list."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.protocol.job_calls import Forget
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.queue_calls import NextRows, OfferRows, OpenQueue, QueueItems, TakeRows
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, error_text
from dask_elastic.runtime.scheduler import output_queues
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.output_queues import OutputQueue, OutputQueues
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.transport.queue_reader import QueueReader
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.vocab.errors import NodeLost, SinkError, SourceError


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just("add"), st.integers(0, 30)), max_size=40))
def test_output_queue_keeps_items_until_acknowledged_and_removes_them_once(steps):
    ledger = OutputQueue(JobGeneration("job", 1), "run", limit=4)
    model: list[tuple[int, str, int]] = []
    removed: list[int] = []
    count = 0
    for step in steps:
        if step == "add":
            count += 1
            assert tuple(ledger.add("worker", 100 + count)) == (count, "worker", 100 + count)
            model.append((count, "worker", 100 + count))
        else:
            removed += [item.item for item in ledger.acknowledge(step)]
            model = [item for item in model if item[0] > step]
        assert [tuple(item) for item in ledger.items] == model
    assert removed + [item[2] for item in model] == [100 + number for number in range(1, count + 1)]


def test_writer_waits_until_readers_have_taken_the_batches_of_its_queue():
    waited = threading.Event()

    def ended() -> bool:
        waited.set()
        return False

    buffer = OutputBuffer(lambda call: True, JobGeneration("job", 1), "worker", ended)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    for queue in ("alerts", "alerts", "others"):
        buffer.put(queue, 4, rows)
    waited.clear()
    drained = threading.Thread(target=buffer.drain, args=("alerts",), daemon=True)
    drained.start()
    assert waited.wait(30)
    buffer.drop([0])
    assert drained.is_alive()
    buffer.drop([1])
    drained.join(30)
    assert not drained.is_alive()


def test_writer_that_waits_for_readers_ends_with_its_job():
    ends = iter([False, False, True])
    buffer = OutputBuffer(lambda call: True, JobGeneration("job", 1), "worker", lambda: next(ends))
    buffer.put("alerts", 4, pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(Aborted):
        buffer.drain("alerts")


class Calls:
    """Calls of a worker; the first ones do not reach it."""

    def __init__(self, failures):
        self.failures = failures
        self.dropped = []

    def present(self, address):
        return True

    async def one(self, address, call):
        if self.failures:
            self.failures -= 1
            raise NodeLost("the connection broke")
        self.dropped += call.items


@pytest.fixture
def queues():
    """Return a function that makes the queues of a scheduler, with one that a running job writes."""

    def make(failures=0):
        dask_queues = SimpleNamespace(release=lambda name, client: None, queues={"alerts": asyncio.Queue()})
        jobs, calls = JobTable(), Calls(failures)
        jobs["job"] = SimpleNamespace(
            spec=SimpleNamespace(run="run"), live=True, error=None, runs=lambda generation: True, generation_id=None,
        )  # fmt: skip
        made = OutputQueues(SimpleNamespace(extensions={"queues": dask_queues}), jobs, calls)
        ledger = made._ledgers["alerts"] = OutputQueue(JobGeneration("job", 1), "run", limit=4)
        return made, ledger, calls

    return make


@pytest.mark.parametrize("items", [0, 1])
def test_reader_gets_the_error_of_a_failed_job_that_is_forgotten_before_it_asks_again(fake, queues, items):
    async def test():
        coordinator = Coordinator(fake.Scheduler({"a": 2}))
        await coordinator.submit(fake.submission())
        made, ledger, _ = queues()
        coordinator.queues = made
        for number in range(items):
            ledger.add("a", number)
        coordinator.health.fail(coordinator.jobs["job"], dump_error(SinkError("the table was dropped")))
        await coordinator.forget(Forget("job"))
        with pytest.raises(Relayed) as raised:
            await made.next_rows(NextRows("alerts", ledger.uid, 0, 0.0))
        assert error_text(raised.value.data) == "the table was dropped"
        await coordinator.close()

    asyncio.run(test())


@pytest.mark.parametrize("items", [0, 1])
def test_reader_ends_with_a_job_that_is_forgotten_before_it_asks_again(queues, items):
    made, ledger, _ = queues()
    for number in range(items):
        ledger.add("worker", number)
    loop = asyncio.new_event_loop()

    def ask(call):
        if isinstance(call, TakeRows):
            return loop.run_until_complete(made.take_rows(call))
        found = loop.run_until_complete(made.next_rows(replace(call, wait=0.0)))
        if not found.items:
            made.forget("job")
        return found

    reader = QueueReader("alerts", ask, lambda *arguments: None)
    read = 0
    for found in reader.pages():
        read += len(found.items)
        reader.take(found, read)
    assert read == items
    loop.close()


def test_reader_learns_that_rows_were_lost_with_a_forgotten_job(queues):
    made, ledger, _ = queues()
    ledger.add("worker", 7)
    made.forget("job")
    with pytest.raises(SourceError, match="1 batches of the job that wrote it are lost, because the job was forgotten"):
        asyncio.run(made.next_rows(NextRows("alerts", ledger.uid, 0, 0.0)))
    assert asyncio.run(made.next_rows(NextRows("alerts", "", 0, 0.0))) == QueueItems()


def job(run, *, live, error=None):
    return SimpleNamespace(
        spec=SimpleNamespace(run=run), live=live, error=error, runs=lambda generation: True, generation_id=None,
    )  # fmt: skip


@pytest.mark.parametrize("error", [None, dump_error(SinkError("the table was dropped"))], ids=["stopped", "failed"])
def test_reader_learns_that_another_job_has_taken_the_queue_of_an_ended_one(queues, error, caplog):
    async def test():
        made, ledger, calls = queues()
        ledger.add("worker", 7)
        made.jobs["job"] = job("run", live=False, error=error)
        made.jobs["next"] = job("other", live=True)
        await made.open_queue(OpenQueue("next", 2, "alerts", 4, False))
        expected = (
            pytest.raises(SourceError, match="1 batches of the job that wrote it are lost, because job 'next' opened")
            if error is None
            else pytest.raises(Relayed)
        )
        with expected:
            await made.next_rows(NextRows("alerts", ledger.uid, 0, 0.0))
        assert "queue 'alerts': 1 batches of job 'job'" in caplog.text
        fresh = await made.next_rows(NextRows("alerts", "", 0, 0.0))
        assert (fresh.job, fresh.items, fresh.ended) == ("next", (), False)
        while made._freeing:
            await asyncio.sleep(0)
        assert calls.dropped == [7]

    asyncio.run(asyncio.wait_for(test(), 100))


def test_reader_ends_with_an_ended_job_whose_queue_another_one_has_taken(queues):
    async def test():
        made, ledger, _ = queues()
        made.jobs["job"], made.jobs["next"] = job("run", live=False), job("other", live=True)
        await made.open_queue(OpenQueue("next", 2, "alerts", 4, False))
        assert (await made.next_rows(NextRows("alerts", ledger.uid, 0, 0.0))).ended

    asyncio.run(test())


def test_reader_goes_on_with_the_next_generation_of_a_run(queues):
    async def test():
        made, ledger, _ = queues()
        ledger.add("worker", 7)
        await made.open_queue(OpenQueue("job", 2, "alerts", 4, False))
        await made.offer_rows(OfferRows("job", 2, "alerts", 4, "worker", 0, 0.0))
        found = await made.next_rows(NextRows("alerts", ledger.uid, 3, 0.0))
        assert (found.generation, len(found.items), found.ended) == (2, 1, False)

    asyncio.run(test())


def test_queue_of_a_job_that_restarts_is_not_opened_by_another_one(queues):
    async def test():
        made, ledger, calls = queues()
        ledger.add("worker", 7)
        made.jobs["next"] = job("other", live=True)
        # Its next generation has not opened the queue yet.
        made.jobs["job"].generation_id = JobGeneration("job", 2)
        with pytest.raises(SinkError, match="is written by job 'job'"):
            await made.open_queue(OpenQueue("next", 2, "alerts", 4, False))
        await made.open_queue(OpenQueue("job", 2, "alerts", 4, False))
        assert (made._ledgers["alerts"].writer, made._forgotten, calls.dropped) == (("job", 2), {}, [])

    asyncio.run(test())


@pytest.mark.parametrize("taken", [False, True], ids=["forgotten", "taken"])
def test_reader_has_lost_nothing_that_it_has_read_and_not_acknowledged(queues, taken):
    async def test():
        made, ledger, _ = queues()
        numbers = [ledger.add("worker", item).number for item in (7, 8)]
        made.jobs["job"], made.jobs["next"] = job("run", live=False), job("other", live=True)
        if taken:
            await made.open_queue(OpenQueue("next", 2, "alerts", 4, False))
        else:
            made.forget("job")
        with pytest.raises(SourceError, match="1 batches of the job that wrote it are lost"):
            await made.next_rows(NextRows("alerts", ledger.uid, numbers[0], 0.0))
        assert (await made.next_rows(NextRows("alerts", ledger.uid, numbers[1], 0.0))).ended

    asyncio.run(test())


def test_queues_of_forgotten_jobs_are_remembered_up_to_a_number(queues, monkeypatch):
    monkeypatch.setattr(output_queues, "FORGOTTEN", 2)
    made, first, _ = queues()
    for _ in range(3):
        made._ledgers["alerts"] = OutputQueue(JobGeneration("job", 1), "run", limit=4)
        made.forget("job")
    assert len(made._forgotten) == 2
    assert first.uid not in made._forgotten


def test_rows_that_were_read_are_dropped_although_a_call_fails(queues, monkeypatch):
    monkeypatch.setattr(output_queues, "RETRY_SECONDS", 0.0)
    made, ledger, calls = queues(failures=3)
    ledger.add("worker", 7)

    async def test():
        await made.take_rows(TakeRows("alerts", ledger.uid, 1))
        while made._freeing:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(test(), 100))
    assert calls.dropped == [7]


def test_rows_of_a_forgotten_job_are_not_dropped_again_and_again(queues, monkeypatch):
    monkeypatch.setattr(output_queues, "RETRY_SECONDS", 0.0)
    made, ledger, calls = queues(failures=1_000_000)
    ledger.add("worker", 7)

    async def test():
        await made.take_rows(TakeRows("alerts", ledger.uid, 1))
        assert made._freeing
        del made.jobs["job"]
        while made._freeing:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(test(), 100))
    assert calls.dropped == []

"""The connection of a client to a mailbox: order, window, what was taken, and the end, on sockets and on comms."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from distributed.comm import listen

from dask_elastic.runtime.client.outlet import Outlet
from dask_elastic.runtime.protocol.job_calls import PushedSource
from dask_elastic.runtime.transport import push_protocol
from dask_elastic.runtime.transport.push_protocol import WINDOW
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.push_server import PushServer
from dask_elastic.vocab.errors import JobEnded, SchemaMismatch, SourceError, UnknownJob, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId

SECONDS = 100
JOB = "job"


def rows(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


class Worker:
    """A worker that has one job with one pushed source."""

    def __init__(self, limit=32 * 2**20):
        self.mailbox = Mailbox(limit)
        self.job_part = SimpleNamespace(
            spec=SimpleNamespace(generation=1),
            ended=False,
            error=None,
            sources={ExecutorId("rows", 0): SimpleNamespace(mailbox=self.mailbox)},
        )
        channels = SimpleNamespace(options=SimpleNamespace(max_frame=2**30))
        self.server = PushServer(SimpleNamespace(job_parts={JOB: self.job_part}, address="here", channels=channels))
        self.read = []

    async def serve(self, comm):
        message = await comm.read()
        assert message.pop("op") == push_protocol.OPERATION
        assert message.pop("reply") is False
        with contextlib.suppress(OSError):
            await self.server.push(comm, **message)

    def end(self, error=None):
        """End the job here, as `JobPart.end` does."""
        self.job_part.ended, self.job_part.error = True, error
        self.mailbox.abort()

    def read_in_thread(self):
        """Read the mailbox as the source does."""

        def run():
            for batch in self.mailbox:
                self.read += batch["n"].to_pylist()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.fixture(params=["tcp://127.0.0.1:0", "inproc://"], ids=["socket", "comm"])
def connected(request):
    """Return a function that runs a coroutine function with a worker and an outlet that is connected to it."""

    def run(test, *, worker=None, job=JOB, place=None):
        async def main():
            served = worker or Worker()
            listener = await listen(request.param, served.serve)
            outlet = Outlet(place or PushedSource("rows", 1, (listener.contact_address,)))
            outlet.place = outlet.place._replace(addresses=(listener.contact_address,))
            try:
                await outlet.open(job, {})
                async with asyncio.timeout(SECONDS):
                    await test(served, outlet)
            finally:
                outlet.close()
                served.end()
                served.server.close()
                listener.stop()

        asyncio.run(main())

    return run


async def until(outlet, condition):
    """Wait for news of a connection until a condition holds."""
    while not condition():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(outlet.news()), 0.05)


async def taken(outlet, batches):
    """Wait until it is known that the first batches were taken."""
    outlet.ask()
    await until(outlet, lambda: outlet.untaken(batches) is None)


def test_batches_arrive_in_order_with_due_times(connected):
    async def test(worker, outlet):
        for number in range(500):
            assert outlet.offer(outlet.encode(rows(number), float(number))) is None
        await taken(outlet, 500)
        assert outlet.uncertain_rows == 0
        batches = iter(worker.mailbox)
        assert next(batches)["n"].to_pylist() == list(range(500))
        assert worker.mailbox.due == 0.0

    connected(test)


def test_rows_are_brought_by_a_thread_of_the_connection_also_before_garbage(connected, monkeypatch):
    threads, bring = [], Mailbox.bring

    def note(mailbox):
        threads.append(threading.current_thread().name)
        bring(mailbox)

    monkeypatch.setattr(Mailbox, "bring", note)

    async def test(worker, outlet):
        # Only `bring` wakes the reading thread.
        worker.mailbox.shortcut = SimpleNamespace(begin=lambda count: False)
        reader = worker.read_in_thread()
        for number in range(10):
            outlet.offer(outlet.encode(rows(number), None))
        await taken(outlet, 10)
        outlet.offer(outlet.encode(rows(10), None))
        outlet._duplex.send((["rows", "first", None], [b"rows"]))
        await until(outlet, lambda: outlet.ended)
        await until(outlet, lambda: worker.read == list(range(11)))
        assert set(threads) == {"elastic-reader"}
        worker.mailbox.close()
        reader.join(SECONDS)

    connected(test)


def test_batches_of_two_schemas_and_nested_columns_arrive(connected):
    nested = pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode(), "l": [[1], [2, 3]]})

    async def test(worker, outlet):
        for batch in (rows(1), nested, rows(2)):
            outlet.offer(outlet.encode(batch, None))
        await taken(outlet, 3)
        worker.mailbox.close()
        got = list(worker.mailbox)
        assert [batch.to_pydict() for batch in got] == [b.to_pydict() for b in (rows(1), nested, rows(2))]
        assert worker.mailbox.due is None

    connected(test)


def test_sender_stops_at_window_while_mailbox_is_full_and_goes_on_when_it_is_read(connected):
    megabyte = pa.record_batch({"n": pa.array(range(2**17), pa.int64())})

    async def test(worker, outlet):
        sent = 0
        while (waiter := outlet.offer(outlet.encode(megabyte, None))) is None:
            sent += 1
            assert sent <= WINDOW // 2**20 + 4, "the window bounds what is sent ahead"
            await asyncio.sleep(0)
        # One batch fills the mailbox; the others are on the way.
        assert sent >= WINDOW // 2**20
        reader = worker.read_in_thread()
        await asyncio.wrap_future(waiter)
        await until(outlet, lambda: outlet.offer(outlet.encode(megabyte, None)) is None)
        await taken(outlet, sent + 1)
        worker.mailbox.close()
        reader.join(SECONDS)
        assert len(worker.read) == (sent + 1) * megabyte.num_rows

    connected(test, worker=Worker(limit=1))


def test_flush_is_answered_only_when_mailbox_has_the_rows(connected):
    async def test(worker, outlet):
        for number in range(3):
            outlet.offer(outlet.encode(rows(number), None))
        outlet.ask()
        await until(outlet, lambda: worker.mailbox._letters)
        assert outlet.untaken(3) is not None
        batches = iter(worker.mailbox)
        for number in range(3):
            assert (await asyncio.to_thread(next, batches))["n"].to_pylist() == [number]
        await taken(outlet, 3)

    connected(test, worker=Worker(limit=1))


def test_end_of_source_tells_how_many_rows_were_not_taken(connected):
    async def test(worker, outlet):
        for number in range(3):
            outlet.offer(outlet.encode(rows(number, number), None))
        await until(outlet, lambda: worker.mailbox._letters)
        worker.mailbox.close()
        await until(outlet, lambda: outlet.ended)
        assert outlet.uncertain_rows == 4
        assert outlet.broken is None
        outlet.check()
        assert [batch["n"].to_pylist() for batch in worker.mailbox] == [[0, 0]]

    connected(test, worker=Worker(limit=1))


def test_error_of_failed_job_reaches_idle_client(connected):
    async def test(worker, outlet):
        worker.end(SchemaMismatch("column 'n'"))
        await until(outlet, lambda: outlet.ended)
        with pytest.raises(SchemaMismatch, match="column 'n'"):
            outlet.check()
        assert outlet.offer(outlet.encode(rows(1), None)).done()

    connected(test)


def test_lost_connection_ends_outlet_with_uncertain_rows(connected):
    async def test(worker, outlet):
        outlet.offer(outlet.encode(rows(1, 2), None))
        worker.server.close()
        await until(outlet, lambda: outlet.ended)
        assert outlet.broken is not None
        assert outlet.uncertain_rows == 2
        outlet.check()

    connected(test)


@pytest.mark.parametrize("interrupted", ["schema", "rows", "ask"])
def test_interrupted_send_breaks_the_connection(connected, interrupted):
    other = pa.record_batch({"m": [1.5]})

    async def test(worker, outlet):
        send = {
            "schema": lambda: outlet.encode(other, None),
            "rows": lambda: outlet.offer(encoded),
            "ask": outlet.ask,
        }[interrupted]
        outlet.offer(encoded := outlet.encode(rows(1, 2), None))
        await taken(outlet, 1)

        def interrupt():
            raise KeyboardInterrupt

        lane = outlet._duplex._lane
        transmit, lane.transmit = lane.transmit, interrupt
        with pytest.raises(KeyboardInterrupt):
            send()
        lane.transmit = transmit
        # No other thread transmits: what is sent from here on would never leave.
        assert outlet.ended
        assert "interrupted by KeyboardInterrupt" in str(outlet.broken)
        assert outlet.uncertain_rows == (2 if interrupted == "rows" else 0)
        assert outlet.offer(encoded).done()

    connected(test)


@pytest.mark.parametrize(
    ("job", "place", "error"),
    [
        ("other", PushedSource("rows", 1, ("",)), UnknownJob),
        (JOB, PushedSource("rows", 2, ("",)), UnknownJob),
        (JOB, PushedSource("others", 1, ("",)), UnknownOperator),
    ],
)
def test_connection_to_unknown_source_is_refused(connected, job, place, error):
    async def test(worker, outlet):
        raise AssertionError("the connection was accepted")

    with pytest.raises(error):
        connected(test, job=job, place=place)


@pytest.mark.parametrize(("error", "raised"), [(None, JobEnded), (SourceError("gone"), SourceError)])
def test_connection_to_ended_job_is_refused(connected, error, raised):
    async def test(worker, outlet):
        raise AssertionError("the connection was accepted")

    worker = Worker()
    worker.end(error)
    with pytest.raises(raised):
        connected(test, worker=worker)


def test_source_that_the_end_of_its_job_closes_meanwhile_is_refused_with_the_end_of_the_job(connected):
    class EndingPart:
        """A part that another thread ends right after the first look whether it has ended."""

        def __init__(self, part):
            self.spec, self.sources, self.error = part.spec, part.sources, None
            self._has_ended = False

        @property
        def ended(self):
            before, self._has_ended = self._has_ended, True
            if not before:
                worker.mailbox.abort()
            return before

    async def test(worker, outlet):
        raise AssertionError("the connection was accepted")

    worker = Worker()
    worker.server.node.job_parts[JOB] = EndingPart(worker.job_part)
    with pytest.raises(JobEnded):
        connected(test, worker=worker)


def test_garbage_of_client_is_refused_with_an_error(connected):
    async def test(worker, outlet):
        outlet._duplex.send((["rows", "first", None], [b"rows"]))
        await until(outlet, lambda: outlet.ended)
        with pytest.raises(Exception, match="use one version of dask_elastic"):
            outlet.check()
        assert worker.mailbox.offer(rows(1), 0.0), "other clients go on"

    connected(test)


def test_connection_that_was_refused_leaves_nothing_at_its_source(connected):
    """A source may run for months, and refuse one client after the other."""

    async def test(worker, outlet):
        outlet.offer(outlet.encode(rows(1), None))
        await taken(outlet, 1)
        assert len(worker.mailbox._watchers) == 1
        outlet._duplex.send((["nonsense"], []))
        await until(outlet, lambda: outlet.ended)
        assert not worker.job_part.ended
        assert worker.mailbox._watchers == []

    connected(test)

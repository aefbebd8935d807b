"""What a client does while the scheduler or a source is silent or lost: it asks, keeps deadlines and loses no rows."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.runtime.client import deadline, sender, senders, unacknowledged
from dask_elastic.runtime.client.client_steps import run_async, run_blocking
from dask_elastic.runtime.client.outlet import Waiter
from dask_elastic.runtime.client.sender import Sender
from dask_elastic.runtime.client.senders import Senders
from dask_elastic.runtime.client.unacknowledged import Unacknowledged
from dask_elastic.vocab.errors import JobEnded, SchedulerLost, SourceError

SECONDS = 60
ROWS = pa.record_batch({"n": [1]})


class Client:
    """A client that runs coroutine functions on the event loop of a thread."""

    def __init__(self):
        self.asyncio_loop = asyncio.new_event_loop()
        self.loop = SimpleNamespace(asyncio_loop=self.asyncio_loop)
        self.status, self.scheduler_comm, self.asynchronous = "running", None, False
        self.preloads = SimpleNamespace(teardown=None)
        self._thread = threading.Thread(target=self.asyncio_loop.run_forever, daemon=True)
        self._thread.start()

    def sync(self, function):
        return asyncio.run_coroutine_threadsafe(function(), self.asyncio_loop).result(SECONDS)

    def close(self):
        self.asyncio_loop.call_soon_threadsafe(self.asyncio_loop.stop)
        self._thread.join(SECONDS)
        self.asyncio_loop.close()


class SilentOutlet:
    """A connection whose worker is suspended: no row is taken, and nothing breaks."""

    ended, broken, batches, uncertain_rows = False, None, 1, 1
    place = SimpleNamespace(generation=1)

    def ask(self):
        """Have no answer."""

    def check(self):
        """Find no error."""

    def untaken(self, batches):
        return Waiter()

    def close(self):
        self.ended = True


@pytest.fixture
def client():
    made = Client()
    yield made
    made.close()


@pytest.fixture
def waiting(client, monkeypatch):
    """A sender that soon asks the scheduler why its source takes no rows."""
    monkeypatch.setattr(sender, "CHECK_SECONDS", 0.01)
    made = Sender(client, "job", "rows")
    made._outlet = SilentOutlet()
    return made


def answer_with(monkeypatch, answer):
    """Have the scheduler answer each question with the result of a coroutine function."""

    async def ask(client, call):
        return await answer()

    monkeypatch.setattr(sender, "ask_scheduler", ask)


async def never():
    await asyncio.Event().wait()


def flush_blocking(client, waiting, timeout):
    run_blocking(client, waiting.flush(timeout))


def flush_async(client, waiting, timeout):
    asyncio.run(run_async(client, waiting.flush(timeout)))


@pytest.mark.parametrize("flush", [flush_blocking, flush_async])
def test_flush_asks_scheduler_while_source_is_silent(client, waiting, monkeypatch, flush):
    async def ended():
        raise JobEnded("job 'job' is finished")

    answer_with(monkeypatch, ended)
    with pytest.raises(JobEnded):
        flush(client, waiting, 5.0)


def test_flush_keeps_its_timeout_while_scheduler_does_not_answer(client, waiting, monkeypatch):
    monkeypatch.setattr(deadline, "ANSWER_SECONDS", 0.05)
    answer_with(monkeypatch, never)
    with pytest.raises(TimeoutError, match=r"has not taken all rows within 0\.1 s"):
        flush_blocking(client, waiting, 0.1)


def test_first_send_keeps_its_timeout_while_scheduler_does_not_answer(client, monkeypatch):
    monkeypatch.setattr(deadline, "ANSWER_SECONDS", 0.05)
    answer_with(monkeypatch, never)
    with pytest.raises(TimeoutError, match=r"scheduler has not answered within 0\.1 s.* 0 of 1 rows were sent: send"):
        run_blocking(client, Sender(client, "job", "rows").send([ROWS], None, False, 0.1))


def test_send_through_silent_scheduler_says_which_rows_are_uncertain(client, monkeypatch):
    monkeypatch.setattr(deadline, "ANSWER_SECONDS", 0.05)
    answer_with(monkeypatch, never)
    made = Sender(client, "job", "rows")
    made._through_scheduler = True
    with pytest.raises(TimeoutError, match="0 of 1 rows were sent, and the next 1 may have been"):
        run_blocking(client, made.send([ROWS], None, False, 0.1))


def test_durable_resend_keeps_its_timeout_and_its_rows(client, monkeypatch):
    monkeypatch.setattr(deadline, "ANSWER_SECONDS", 0.05)
    answer_with(monkeypatch, never)
    made = Sender(client, "job", "rows")
    made._through_scheduler, made._run, made._unacknowledged = True, "run", Unacknowledged()
    with pytest.raises(TimeoutError, match="1 are on the way, and remain so"):
        run_blocking(client, made.send([ROWS], None, False, 0.1))
    assert made.uncertain_rows == 1


def test_lost_scheduler_leaves_connection_and_unacknowledged_rows(client, waiting, monkeypatch):
    async def lost():
        raise SchedulerLost("the client is connecting")

    answer_with(monkeypatch, lost)
    outlet, kept = waiting._outlet, Unacknowledged()
    kept.add(None, [], None, 3, 0)
    waiting._run, waiting._unacknowledged = "run", kept
    waiting.doubt()
    with pytest.raises(SchedulerLost) as raised:
        flush_blocking(client, waiting, None)
    assert "3 rows" in raised.value.__notes__[0]
    assert waiting._outlet is outlet
    assert not outlet.ended
    assert waiting._unacknowledged is kept
    assert waiting.uncertain_rows == 3


def test_interrupted_add_leaves_no_number_that_is_never_sent(monkeypatch):
    def interrupt(*fields):
        raise KeyboardInterrupt

    kept = Unacknowledged()
    kept.add(None, [], None, 1, 0)
    with monkeypatch.context() as patched:
        patched.setattr(unacknowledged, "Kept", interrupt)
        with pytest.raises(KeyboardInterrupt):
            kept.add(None, [], None, 1, 0)
    assert kept.newest == 1
    kept.acknowledge(1)
    assert kept.newest == kept.acknowledged == 1
    assert kept.add(None, [], None, 1, 0).sequence == 2


def test_closing_client_flushes_all_senders_at_the_same_time(client):
    async def close():
        known, together = Senders(client), asyncio.Barrier(3)

        def flush(timeout):
            yield lambda: asyncio.wait_for(together.wait(), 5)
            flushed.append(timeout)

        for name in ("a", "b", "c"):
            known._senders[name, "rows"] = SimpleNamespace(uncertain_rows=1, flush=flush, close=lambda: None)
        await known.close()

    flushed = []
    client.sync(close)
    assert len(flushed) == 3


def known(client, **fates):
    """The senders of a job whose sources fail so when they are flushed, and the sources that were flushed."""
    made, flushed = Senders(client), []

    def sender_of(source, fate):
        def flush(timeout, deadline):
            flushed.append(source)
            yield lambda: asyncio.sleep(0)
            if fate is not None:
                raise fate

        return SimpleNamespace(uncertain_rows=1, flush=flush)

    made._senders = {("job", source): sender_of(source, fate) for source, fate in fates.items()}
    return made, flushed


LOST, LATE = SourceError("source 'a' has not taken the last 3 rows"), TimeoutError("source 'b' has not taken all rows")


@pytest.mark.parametrize(
    ("fates", "raised", "notes"),
    [
        ({"a": LOST, "b": None}, LOST, []),
        ({"a": LOST, "b": LATE}, LATE, [f"SourceError: {LOST}"]),
        ({"b": LATE, "a": LOST}, LATE, [f"SourceError: {LOST}"]),
        ({"a": LOST, "b": JobEnded("job 'job' is finished")}, LOST, ["JobEnded: job 'job' is finished"]),
    ],
)
def test_flush_awaits_every_source_and_tells_what_each_has_lost(client, fates, raised, notes):
    """A drain, which goes on behind lost rows, would else lose those that another source has not taken yet."""
    made, flushed = known(client, **fates)
    with pytest.raises(type(raised)) as error:
        run_blocking(client, made.flush("job", 5.0))
    assert flushed == [*fates]
    assert error.value is raised
    assert vars(raised).pop("__notes__", []) == notes


def send_blocking(client, made):
    run_blocking(client, made.send([ROWS], None, False, 0.1))


def send_async(client, made):
    asyncio.run(run_async(client, made.send([ROWS], None, False, 0.1)))


@pytest.mark.parametrize("send", [send_blocking, send_async])
def test_send_of_a_closed_client_tells_that_it_is_closed(client, send):
    """Not the RuntimeError of its event loop, which is closed, too."""

    def closed(function):
        raise RuntimeError("IOLoop is closed")

    client.status, client.sync = "closed", closed
    loop = asyncio.new_event_loop()
    loop.close()
    client.loop = SimpleNamespace(asyncio_loop=loop)
    with pytest.raises(SchedulerLost, match="the client is closed"):
        send(client, Sender(client, "job", "rows"))


def test_send_that_waits_has_one_timeout_for_room_and_for_the_source(client, monkeypatch):
    """It had the timeout twice."""
    made, deadlines = Sender(client, "job", "rows"), []

    def send_one(part, schema, due, deadline, timeout):
        deadlines.append(deadline)
        yield lambda: asyncio.sleep(0)

    def late(unacknowledged, sequence, deadline, timeout):
        deadlines.append(deadline)
        yield lambda: asyncio.sleep(0)

    made._through_scheduler, made._unacknowledged = True, Unacknowledged()
    monkeypatch.setattr(made, "_send_one", send_one)
    monkeypatch.setattr(made, "_await_acknowledged", late)
    run_blocking(client, made.send([ROWS], None, True, 30.0))
    assert len(deadlines) == 2
    assert deadlines[0] == deadlines[1]


def test_closing_that_is_cancelled_tells_of_rows_that_may_be_lost(client, caplog):
    """As of `client.close(timeout=...)`."""

    async def close():
        made = Senders(client)

        def flush(timeout):
            yield never

        made._senders["job", "rows"] = SimpleNamespace(uncertain_rows=1, flush=flush, close=lambda: None)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.close(), 0.05)

    client.sync(close)
    assert "rows sent to source 'rows' of job 'job' may not have been taken" in caplog.text


def test_client_that_cannot_flush_at_exit_does_not_keep_others_from_it(monkeypatch, caplog):
    def refuse():
        raise RuntimeError("IOLoop is closed")

    flushed = []
    known = [SimpleNamespace(flush_at_exit=one) for one in (refuse, lambda: flushed.append(1), refuse)]
    monkeypatch.setattr(senders, "_OPEN", known)
    senders._flush_all()
    assert flushed == [1]
    assert caplog.text.count("rows that a client has sent may not have been taken: IOLoop is closed") == 2

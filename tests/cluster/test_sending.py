"""`Job.send` goes straight to the source's worker: order, errors, backpressure, every kind of client, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from counting_jobs import NUMBERS, RUN, SCHEMA, counting
from distributed import Client, get_client, worker_client
from distributed.security import Security

import dask_elastic as de
from dask_elastic.runtime.client import outlet, sender, senders
from dask_elastic.runtime.client.outlet import Outlet
from dask_elastic.runtime.client.senders import checked_due, senders_of
from dask_elastic.runtime.scheduler.pushed_sources import PushedSources
from dask_elastic.vocab import errors

ONE = pa.schema({"n": pa.int64()})


def one(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int64())})


def listed(client, name="listed", **source):
    """A job that collects the rows that are pushed to it, in order."""
    topology = de.Topology(name)
    topology.source("rows", de.sources.Push(ONE, **source)).sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client)


def numbers_of(job):
    return job.collect("out")["n"].to_pylist()


def outlet_of(job, source="rows"):
    """The connection over which a job's handle has sent; None for the way through the scheduler."""
    return senders_of(job.client)._senders[job.name, source]._outlet


@pytest.fixture
def patient(monkeypatch):
    """Have clients not ask the scheduler, or send through it, because workers are slow."""
    monkeypatch.setattr(outlet, "CONNECT_SECONDS", 100.0)
    monkeypatch.setattr(sender, "CHECK_SECONDS", 100.0)


@pytest.fixture
def count_calls(monkeypatch):
    """Return a function that starts to count the calls that the scheduler of an in-process cluster answers."""
    counts = {"find": 0, "send": 0}

    def watch(name):
        plain = getattr(PushedSources, name)

        async def counted(self, call):
            counts[name] += 1
            return await plain(self, call)

        monkeypatch.setattr(PushedSources, name, counted)

    def start():
        for name in counts:
            watch(name)
        return counts

    return start


def send_until_it_raises(job, rows, *args, times=100_000, **options):
    """Send the same rows again and again; the caller expects an error."""
    for _ in range(times):
        job.send(rows, *args, **options)


# the way of the rows


def test_rows_of_many_sends_keep_their_order(client):
    job = listed(client)
    again = de.job("listed", client)
    for number in range(1_000):
        (job if number % 2 else again).send(one(number), "rows" if number % 3 else None)
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == list(range(1_000))
    assert de.jobs(client)[0].name == "listed"


def test_client_forgets_the_oldest_senders_of_jobs_that_have_ended(client, monkeypatch):
    monkeypatch.setattr(senders, "KEPT_IDLE", 2)
    held = listed(client, "held")
    held.send(one(1))
    for number in range(5):
        job = listed(client, f"short-{number}")
        job.send(one(number))
        job.end_of_input()
        job.wait(**RUN)
        job.forget()
    known = senders_of(client)
    assert [name for name, _ in known._senders] == ["held", "short-2", "short-3", "short-4"]
    again = listed(client, "short-0")
    for job in (again, held):
        job.send(one(2))
        job.end_of_input()
        job.wait(**RUN)
    assert (numbers_of(again), numbers_of(held)) == ([2], [1, 2])
    assert sum(one.calls for one in known._senders.values()) == 0


def test_large_tables_are_sent_in_parts_and_keep_their_order(client):
    job = listed(client)
    table = pa.table({"n": np.arange(300_000)})
    job.send(pa.concat_tables([table.slice(0, 7), table.slice(7, 100_000), table.slice(100_007)]))
    job.send(table.slice(0, 0))
    job.send(table.to_batches()[0].slice(5, 2))
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == [*range(300_000), 5, 6]


def test_scheduler_is_asked_once_for_many_sends(small_cluster, count_calls, patient):
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        counts = count_calls()
        job = listed(client)
        for number in range(100):
            job.send(one(number))
        job.flush(timeout=100)
        assert counts["send"] == 0
        assert counts["find"] <= 2
        assert outlet_of(job) is not None
        job.end_of_input()
        job.wait(**RUN)
        assert numbers_of(job) == list(range(100))


@pytest.mark.parametrize("unreachable", [False, True], ids=["gateway", "unreachable"])
def test_client_without_way_to_workers_sends_through_scheduler(small_cluster, monkeypatch, count_calls, unreachable):
    async def refuse(self, job, connection_args):
        raise OSError("no route to host")

    monkeypatch.setattr(Outlet, "open", refuse)
    cluster = small_cluster(processes=False)
    direct = None if unreachable else False
    with Client(cluster, set_as_default=False, direct_to_workers=direct) as client:
        counts = count_calls()
        job = listed(client)
        for number in range(10):
            job.send(one(number), due=time.time(), wait=number % 2 == 0)
        asyncio.run(job.asend(one(10)))
        assert counts["send"] == 11
        assert outlet_of(job) is None
        job.end_of_input()
        job.wait(**RUN)
        assert numbers_of(job) == list(range(11))
        with pytest.raises(errors.JobEnded, match="is finished: it takes no more rows"):
            job.send(one(11))


def test_tls_connection_carries_sent_rows(small_cluster, patient):
    with Client(small_cluster(security=Security.temporary()), set_as_default=False) as client:
        job = listed(client)
        for number in range(200):
            job.send(one(number))
        assert outlet_of(job).address.startswith("tls://")
        job.end_of_input()
        job.wait(**RUN)
        assert numbers_of(job) == list(range(200))


def test_sends_of_several_threads_and_clients_all_arrive(cluster, client):
    job = listed(client)

    def send(start):
        with Client(cluster, set_as_default=False) if start % 2 else contextlib.nullcontext(client) as sending:
            mine = de.job("listed", sending)
            for number in range(start * 1_000, start * 1_000 + 200):
                mine.send(one(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    job.end_of_input()
    job.wait(**RUN)
    got = numbers_of(job)
    for start in range(4):
        mine = [number for number in got if number // 1_000 == start]
        assert mine == list(range(start * 1_000, start * 1_000 + 200))


def test_task_on_worker_sends_rows(client):
    job = listed(client)

    def from_task(rows):
        de.job("listed", get_client()).send(rows, wait=True)

    def from_long_task(rows):
        with worker_client() as mine:
            de.job("listed", mine).send(rows, wait=True)

    client.submit(from_task, one(1)).result(timeout=100)
    client.submit(from_long_task, one(2)).result(timeout=100)
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == [1, 2]


# asynchronous use


def test_asend_awaits_on_any_event_loop(client, patient):
    job = listed(client)

    async def main():
        for number in range(50):
            await job.asend(one(number))
        await job.asend(one(50), wait=True, timeout="100s")

    asyncio.run(main())
    assert outlet_of(job).uncertain_rows == 0
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == list(range(51))


def test_asynchronous_client_sends_with_asend_only(cluster, client):
    job = listed(client)

    async def main():
        async with Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as mine:
            handle = de.Job("listed", mine)
            assert repr(handle) == "<Job listed>"
            assert handle._repr_html_() == "<p>listed</p>"
            calls = (partial(de.jobs, mine), partial(de.submit, de.Topology("empty"), mine), handle.metrics)
            for call in (partial(de.job, "listed", mine), *calls):
                with pytest.raises(TypeError, match=r"client is asynchronous, .* in a thread"):
                    call()
            assert (await asyncio.to_thread(de.job, "listed", mine)).name == "listed"
            with pytest.raises(TypeError, match=r"await job\.asend"):
                handle.send(one(1))
            for number in range(20):
                await handle.asend(one(number))

    asyncio.run(main())
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == list(range(20)), "an asynchronous client flushes when it closes"


# backpressure


def stuck(client, name="stuck"):
    """A job that reads a row per second."""
    return listed(client, name, rate=1)


MEGABYTE = pa.table({"n": np.arange(2**17)})


def test_send_waits_while_source_is_full_and_times_out(client):
    job = stuck(client)
    # A worker that pauses seems full: what comes next does not assume that it is.
    with pytest.raises(TimeoutError, match=r"'rows' of job 'stuck' has had no room for 0\.5 s.* \d+ of 131072 rows"):
        send_until_it_raises(job, MEGABYTE, timeout=0.5, times=60)

    def flush_when_full():
        for _ in range(60):
            with contextlib.suppress(TimeoutError):
                send_until_it_raises(job, MEGABYTE, timeout=0.5, times=60)
            job.flush(timeout=0.2)

    with pytest.raises(TimeoutError, match=r"has not taken all rows within 0\.2 s"):
        flush_when_full()

    began = []

    async def asend_when_full():
        for _ in range(60):
            began.append(time.monotonic())
            await job.asend(MEGABYTE, timeout=0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(asend_when_full())
    assert time.monotonic() - began[-1] >= 0.25
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(send_until_it_raises, job, MEGABYTE, times=60)
        de.job("stuck", client).stop()
        with pytest.raises(errors.JobEnded, match="takes no more rows"):
            waiting.result(timeout=100)


# ends and errors


def test_source_ended_by_another_client_refuses_rows(cluster, client):
    topology = de.Topology("two")
    rows = [topology.source(name, de.sources.Push(ONE)) for name in ("first", "second")]
    rows[0].union(rows[1]).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    job.send(one(1), "first")
    with Client(cluster, set_as_default=False) as other:
        de.job("two", other).end_of_input("first")
    with pytest.raises(errors.SourceError, match="'first' of job 'two' has ended: it takes no more rows"):
        send_until_it_raises(job, one(2), "first", wait=True)
    with pytest.raises(errors.SourceError, match="'first' of job 'two' has ended"):
        job.send(one(2), "first")
    job.send(one(3), "second")
    with pytest.raises(errors.UnknownOperator, match=r"the pushed sources \['first', 'second'\]: name one"):
        job.send(one(4))
    job.end_of_input("second")
    job.wait(**RUN)
    assert sorted(numbers_of(job))[-1] == 3


def test_failed_job_raises_its_error_from_next_send_and_counts_lost_rows(client):
    def refuse(rows):
        raise ValueError("no such number")

    topology = de.Topology("refusing")
    topology.source("rows", de.sources.Push(SCHEMA)).map(refuse, name="tidy").sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    job.send(NUMBERS)
    with pytest.raises(errors.UserCodeError, match=r"operator 'tidy'.*no such number"):
        send_until_it_raises(job, NUMBERS)
    with pytest.raises(errors.JobFailed):
        job.wait(**RUN)
    with pytest.raises(errors.UserCodeError):
        job.send(NUMBERS)


def test_drain_keeps_sent_rows_and_later_send_raises(client):
    job = listed(client)
    for number in range(100):
        job.send(one(number))
    job.drain(timeout=100)
    assert numbers_of(job) == list(range(100))
    with pytest.raises(errors.JobEnded, match="is finished: it takes no more rows"):
        job.send(one(100))


def test_job_submitted_again_receives_rows_of_the_same_client(client):
    for start in range(5):
        job = listed(client)
        job.send(one(start))
        if start % 2:
            job.stop()
            continue
        job.end_of_input()
        job.wait(**RUN)
        assert numbers_of(job) == [start]


def test_killed_worker_raises_from_send(small_cluster):
    with Client(small_cluster(n_workers=2), set_as_default=False) as client:
        job = listed(client)
        job.send(one(1))
        pids = client.run(os.getpid)
        os.kill(pids[outlet_of(job).address], signal.SIGKILL)
        with pytest.raises(errors.NodeLost):
            send_until_it_raises(job, one(2))
        with pytest.raises(errors.JobFailed):
            job.wait(**RUN)
        with pytest.raises(errors.NodeLost):
            job.send(one(3))


# the end of a client


def test_closing_client_flushes(small_cluster):
    cluster = small_cluster()
    with Client(cluster, set_as_default=False) as client:
        job = listed(client)
        for number in range(3):
            with Client(cluster, set_as_default=False) as other:
                for _ in range(100):
                    de.job("listed", other).send(one(number))
        job.end_of_input()
        job.wait(**RUN)
        assert numbers_of(job) == [0] * 100 + [1] * 100 + [2] * 100


PROGRAM = """
    import sys
    import pyarrow as pa
    from distributed import Client
    import dask_elastic as de

    client = Client(sys.argv[1], set_as_default=False)
    job = de.job("listed", client)
    for number in range(300):
        job.send(pa.table({"n": [number]}))
"""


def test_ending_program_flushes_without_closing_its_client(cluster, client):
    job = listed(client)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), cluster.scheduler_address]
    subprocess.run(command, check=True, timeout=240, env=os.environ)
    job.end_of_input()
    job.wait(**RUN)
    assert numbers_of(job) == list(range(300))


def test_connections_of_closed_clients_leave_no_thread(cluster, client):
    def readers(dask_worker):
        import threading

        return sum(thread.name.startswith("elastic-reader") for thread in threading.enumerate())

    job = listed(client)
    job.send(one(0), wait=True)
    before = sum(client.run(readers).values())
    for number in range(1, 6):
        with Client(cluster, set_as_default=False) as other:
            de.job("listed", other).send(one(number))
    deadline = time.monotonic() + 100
    while sum(client.run(readers).values()) > before:
        assert time.monotonic() < deadline
    job.end_of_input()
    job.wait(**RUN)
    assert sorted(numbers_of(job)) == list(range(6))


# due times


def test_latency_counts_from_given_due_time(client, wait_until):
    job = de.submit(counting(de.sources.Push(SCHEMA)), client, cores={"counted": 1}, report_interval="50ms")

    def median():
        return job.metrics()["latency_p50"].max()

    job.send(NUMBERS, due=time.time() + 60)
    wait_until(lambda: job.metrics()["rows"].sum() == 2_000, "the rows are processed")
    assert median() < 50, "a due time that is still to come counts as the time of arrival"
    for _ in range(3):
        job.send(NUMBERS, due=time.time() - 100)
    wait_until(lambda: job.metrics()["rows"].sum() == 8_000, "the rows are processed")
    wait_until(lambda: median() > 90, "the latency counts from the due time")


def test_due_time_counts_also_with_a_rate(client, wait_until):
    source = de.sources.Push(SCHEMA, rate=1e6)
    job = de.submit(counting(source), client, cores={"counted": 1}, report_interval="50ms")
    job.send(NUMBERS, due=time.time() - 100)
    wait_until(lambda: job.metrics()["rows"].sum() == 2_000, "the rows are processed")
    wait_until(lambda: job.metrics()["latency_p50"].max() > 90, "the latency counts from the due time")


@pytest.mark.parametrize("due", [0, 1.5, np.float64(3.0), np.int64(7), None])
def test_due_times_in_seconds_are_accepted(due):
    assert checked_due(due) == due
    assert due is None or type(checked_due(due)) is float


@pytest.mark.parametrize(
    ("due", "error"),
    [("now", TypeError), (True, TypeError), ([1.0, 2.0], TypeError), (float("nan"), ValueError),
     (float("inf"), ValueError), (-1.0, ValueError), (1.8e12, ValueError)],
)  # fmt: skip
def test_due_times_that_are_no_seconds_are_refused(client, due, error):
    with pytest.raises(error, match="seconds since the epoch"):
        de.Job("none", client).send(one(1), due=due)

"""A coordinator whose job has a home that moves, and workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.home_calls import CopyHome, MoveHome
from dask_elastic.runtime.scheduler.coordinator import Coordinator

sys.path.insert(0, str(Path(__file__).parent))
from move_calls import COPIED, MOVED
from moving_job import FIRST, OTHER, Part

sys.path.pop(0)


@pytest.fixture
def job(fake):
    """Return a function that runs a test with a coordinator that has a job with one executor, at home on worker a."""

    def run(test, threads=None, **given):
        async def with_job():
            scheduler = fake.Scheduler(threads or {"a": 2, "b": 2})
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                scheduler.answers[address, CopyHome] = COPIED
                scheduler.answers[address, MoveHome] = MOVED
            coordinator = Coordinator(scheduler)
            await coordinator.submit(fake.submission(**{"executors": 1, **given}))
            coordinator.controller.stop()
            scheduler.calls.clear()
            await asyncio.wait_for(test(coordinator, scheduler, coordinator.jobs["job"]), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


@pytest.fixture
def old():
    """The part on node 1, which is home of the first executor, and on which an instance of the source is."""
    part = Part(1)
    part.homes[FIRST] = part.threads_of(part.executor(FIRST, {1: 1}))
    part.homes[FIRST].begin()
    part.sources[OTHER] = None
    return part


@pytest.fixture
def new():
    """The part on node 3, a guest."""
    return Part(3)


@pytest.fixture
def wait_for():
    """Return a function that waits for a condition."""

    def wait(condition):
        pause = threading.Event()
        for _ in range(20_000):
            if condition():
                return
            pause.wait(0.005)
        raise AssertionError("not within 100 s")

    return wait

"""Errors whose text is empty or cannot be made, that count as false, or whose class is not installed here."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from concurrent.futures import Future
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol.job_calls import Describe, Wait
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, error_text, load_error, text_of
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.worker.homes.awaited_answers import AwaitedAnswers
from dask_elastic.runtime.worker.push_server import _check_runs
from dask_elastic.vocab.errors import ElasticError, JobFailed

FAILED = JobDescription(
    name="words", generation=1, status=Status.FAILED, error=None, began=0.0, ended=5.0, oversubscribed=False,
    latency_target=None, planner="elasticutor", paradigm="executor-centric", dry_run=False, pinned=(), nodes=("a",),
    components=(), executors=(), sources=(), sinks=(), event_times=(), dead_letters={}, refused=0,
)  # fmt: skip
NOTHING = "job 'words' failed: see the log of the scheduler"


class Falsy(ElasticError):
    """Counts as false, as a class of errors does that has a length."""

    def __len__(self):
        return 0


class Broken(Exception):
    """Has no text."""

    def __str__(self):
        return self.missing


@pytest.fixture
def foreign():
    """An error as bytes whose class is in a module that this process does not have."""
    module = ModuleType("only_on_workers")
    exec("class Refusal(Exception): pass", vars(module))
    sys.modules["only_on_workers"] = module
    data = pickle.dumps(module.Refusal("no table"))
    del sys.modules["only_on_workers"]
    return data


def failed(monkeypatch, error):
    """A handle on a job that has failed."""
    described = replace(FAILED, error=error)
    job = Job("words", SimpleNamespace(extensions={}))
    monkeypatch.setattr(job, "_ask", lambda call, deadline=None: {Wait: described, Describe: described}[type(call)])
    return job


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a delay of -5"), "a delay of -5"),
        (TimeoutError(), "TimeoutError"),
        (ValueError(" \n"), "ValueError"),
        (Falsy("no table"), "no table"),
        (Falsy(), "Falsy"),
        (Broken(), "Broken, whose text cannot be made: AttributeError"),
    ],
)
def test_error_has_a_text_in_each_process(monkeypatch, error, text):
    data = dump_error(error)
    assert text_of(error) == error_text(data) == str(Relayed(data)) == text
    with pytest.raises(JobFailed) as raised:
        failed(monkeypatch, data).wait(progress=False)
    assert str(raised.value) == f"job 'words' failed: {text}"
    assert type(raised.value.__cause__) is type(error)


def test_job_that_failed_without_a_known_error_refers_to_the_log(monkeypatch):
    with pytest.raises(JobFailed) as raised:
        failed(monkeypatch, None).wait(progress=False)
    assert str(raised.value) == NOTHING


def test_error_that_cannot_be_pickled_and_has_no_text_is_sent(monkeypatch):
    error = Broken()
    error.lock = sys._getframe()
    assert "Broken, whose text cannot be made" in str(load_error(dump_error(error)))


def test_error_of_a_class_that_the_client_lacks_is_told_as_that_of_the_job(monkeypatch, foreign):
    job = failed(monkeypatch, foreign)
    text = "an error that cannot be unpickled here (ModuleNotFoundError: No module named 'only_on_workers')"
    with pytest.raises(JobFailed) as raised:
        job.wait(progress=False)
    assert str(raised.value) == f"job 'words' failed: {text}"
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    assert isinstance(job.error, JobFailed)
    assert str(job.error) == text


def test_error_that_a_worker_relays_is_told_in_the_log_of_the_scheduler(caplog):
    calls = WorkerCalls.__new__(WorkerCalls)
    calls.present = lambda address: True

    async def one(address, call):
        raise Relayed(dump_error(ValueError("a delay of -5")))

    calls.one = one
    record = SimpleNamespace(name="words", addresses=["a"])
    with caplog.at_level(logging.WARNING):
        asyncio.run(calls.tell(record, SimpleNamespace(operation="elastic_end")))
    assert "job 'words': elastic_end: a delay of -5" in caplog.text


def test_error_that_counts_as_false_ends_calls_of_a_worker_and_of_its_clients():
    error, answers = Falsy("no table"), AwaitedAnswers()
    answers.end(error)
    answers.end(ElasticError("the job has ended"))
    with pytest.raises(Falsy):
        answers.of(Future())
    with pytest.raises(Falsy):
        _check_runs(SimpleNamespace(ended=True, error=error), "words")

"""What a client raises or warns of at the end of a job: lost rows, failures, and a folder that may still change."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol.job_calls import Drain, Forget, Stop, Wait
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.vocab.checkpoint import CheckpointStatus
from dask_elastic.vocab.errors import JobFailed, JobStopped, SourceError

RUNNING = JobDescription(
    name="words", generation=1, status=Status.RUNNING, error=None, began=0.0, ended=None, oversubscribed=False,
    latency_target=None, planner="elasticutor", paradigm="executor-centric", dry_run=False, pinned=(), nodes=("a",),
    components=(), executors=(), sources=(), sinks=(), event_times=(), dead_letters={}, refused=0,
    checkpoints=CheckpointStatus("/saved", 3, 1.0, None, None, 0, 0, True),
)  # fmt: skip
FINISHED = replace(RUNNING, status=Status.FINISHED, ended=5.0)
STOPPED = replace(FINISHED, status=Status.STOPPED)
HANGS = {"settled": False, "unanswered": "its storage"}
CHANGES = "its storage did not answer, so that /saved may still change: wait again before you delete it"


@pytest.fixture
def handle(monkeypatch):
    """Return a function that makes a handle on a job whose scheduler answers each call as the test says."""

    def made(answers, flush=lambda seconds: None):
        job = Job("words", SimpleNamespace(extensions={}))
        monkeypatch.setattr(job, "_ask", lambda call, deadline=None: answers[type(call)])
        monkeypatch.setattr(job, "flush", flush)
        return job

    return made


def warned(recorded):
    """The texts of the warnings, all of which name the line of the program."""
    assert {warning.filename for warning in recorded} <= {__file__}
    return [str(warning.message) for warning in recorded]


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("drains", [False, True])
def test_wait_for_a_finished_job_warns_of_its_folder_once_storage_is_waited_for_no_longer(handle, timeout, drains):
    job = handle({Wait: replace(FINISHED, **HANGS), Drain: None})
    with pytest.warns(UserWarning, match=CHANGES) as recorded:
        job.drain(timeout) if drains else job.wait(timeout, progress=False)
    assert warned(recorded) == [f"job 'words' has finished, but {CHANGES}"]


@pytest.mark.parametrize("end", [Stop, Forget])
def test_stop_and_forget_warn_of_a_folder_that_may_still_change(handle, end):
    job = handle({end: replace(STOPPED, **HANGS)})
    with pytest.warns(UserWarning, match=CHANGES) as recorded:
        job.stop() if end is Stop else job.forget()
    assert warned(recorded) == [f"job 'words' was stopped, but {CHANGES}"]


def test_end_of_a_job_whose_folder_does_not_change_warns_of_nothing(handle):
    job = handle({Wait: FINISHED, Stop: FINISHED, Forget: FINISHED, Drain: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.wait(progress=False)
        job.drain()
        job.stop()
        job.forget()


def test_error_of_a_job_has_a_note_on_a_folder_that_may_still_change(handle):
    with pytest.raises(JobStopped) as raised:
        handle({Wait: replace(STOPPED, **HANGS)}).wait(progress=False)
    assert raised.value.__notes__ == [f"After its end, {CHANGES}."]


@pytest.mark.parametrize("status", [Status.FINISHED, Status.STOPPED])
def test_wait_without_time_says_that_a_job_has_ended_and_writes_its_last_files(handle, status):
    """Nothing is known of its storage after so short a time."""
    job = handle({Wait: replace(FINISHED, status=status, settled=False)})
    writes = "it was still writing its last files to /saved after 0 s: wait again before you delete it"
    with pytest.raises(TimeoutError if status is Status.FINISHED else JobStopped) as raised:
        job.wait(timeout=0, progress=False)
    if status is Status.FINISHED:
        assert str(raised.value) == f"job 'words' has finished, but {writes}"
    else:
        assert raised.value.__notes__ == [f"After its end, {writes}."]


FAILED = replace(FINISHED, status=Status.FAILED, error=dump_error(ValueError("a delay of -5")))


@pytest.mark.parametrize(
    ("end", "raises"), [(FAILED, JobFailed), (STOPPED, JobStopped), (RUNNING, TimeoutError), (FINISHED, SourceError)]
)
def test_drain_that_fails_behind_rows_that_were_not_taken_tells_both(handle, end, raises):
    lost = SourceError("source 'words' has not taken the last 3 rows")

    def flush(seconds):
        raise lost

    with pytest.raises(raises) as raised:
        handle({Wait: end, Drain: None}, flush).drain(timeout=0)
    if end is FINISHED:
        assert raised.value is lost
        return
    assert raised.value.__notes__ == [f"Before that, rows of this client were not taken: {lost}"]
    assert raised.value.__context__ is lost

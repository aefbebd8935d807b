"""What a client tells of a job that it starts: workers that are left out, and a start that Ctrl-C leaves behind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_elastic.runtime.client.submission import job_start
from dask_elastic.runtime.client.submission.job_start import start


def submit(monkeypatch, answer):
    """Start a job as `dask_elastic.submit` does, in one more call; the scheduler answers with what the test gives."""
    monkeypatch.setattr(job_start, "call_scheduler", answer)
    installation = SimpleNamespace(finish=lambda: None)
    return start(SimpleNamespace(name="words"), SimpleNamespace(extensions={}), installation)


def test_warning_of_workers_that_are_left_out_names_the_line_of_the_program(monkeypatch):
    def program():
        submit(monkeypatch, lambda client, job: SimpleNamespace(name="words", silent=("a", "b")))

    with pytest.warns(UserWarning, match="'words' runs without a and b: no answer") as recorded:
        program()
    assert [(one.filename, one.lineno) for one in recorded] == [(__file__, program.__code__.co_firstlineno + 1)]


def test_interrupted_submit_tells_that_the_job_may_start(monkeypatch):
    """The scheduler goes on with what it was called for."""

    def interrupted(client, job):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        submit(monkeypatch, interrupted)
    assert raised.value.__notes__ == [
        "Job 'words' may start nevertheless: dask_elastic.job('words') finds it then, and its stop() ends it."
    ]

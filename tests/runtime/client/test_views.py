"""Views of a job and of its state that a client shows."""

from __future__ import annotations

from html import escape
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.client import job_state
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.job_state import JobState
from dask_elastic.runtime.protocol.job_calls import Assignment, Describe
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment
from dask_elastic.vocab.errors import NodeLost, SchedulerLost, UnknownJob, UnknownOperator

SHOWN = "State of 'per_letter' in job 'letters'"


@pytest.mark.parametrize("kind", [SchedulerLost, UnknownJob, NodeLost, UnknownOperator])
def test_state_that_cannot_be_read_is_shown_with_the_reason(monkeypatch, kind):
    """An interpreter, a debugger or a notebook shows it as often as it likes."""

    def refuse(client, call):
        raise kind("it is not <there>")

    monkeypatch.setattr(job_state, "call_scheduler", refuse)
    state = JobState(SimpleNamespace(asynchronous=False), "letters", "per_letter")
    assert repr(state) == f"{SHOWN}: it is not <there>"
    assert state._repr_html_() == f"<p>{escape(SHOWN)}: it is not &lt;there&gt;</p>"
    with pytest.raises(kind):
        state.to_arrow()


def test_state_of_an_asynchronous_client_is_shown_without_being_read():
    state = JobState(SimpleNamespace(asynchronous=True), "letters", "per_letter")
    assert repr(state) == SHOWN
    assert state._repr_html_() == f"<p>{escape(SHOWN)}</p>"


@pytest.mark.parametrize("every", [0, "0s", -1, float("nan"), "soon", None])
def test_card_refuses_times_that_are_no_time_between_two_updates(every):
    """A thread that never waits would call the scheduler without a pause until the job ends."""
    with pytest.raises(ValueError, match="every is "):
        Job("letters", SimpleNamespace()).card(every)


def test_assignment_names_the_workers_of_the_generation_that_it_is_of(monkeypatch):
    """A job that restarts between the two questions numbers its workers anew."""
    part = ExecutorAssignment("per_letter", 0, 1, (0, 0, 1), {0: 1, 1: 0})
    generations = iter([(1, ("a", "b")), (2, ("c",)), (3, ("d", "e")), (3, ("d", "e", "f"))])
    asked = []

    def ask(call, deadline=None):
        asked.append(type(call))
        if isinstance(call, Assignment):
            return (part,)
        generation, nodes = next(generations)
        return SimpleNamespace(generation=generation, nodes=nodes, live=True)

    job = Job("letters", SimpleNamespace(extensions={}))
    monkeypatch.setattr(job, "_ask", ask)
    found = job.assignment()
    assert found["home"].tolist() == ["e", "e"]
    assert found["node"].tolist() == ["e", "d"]
    assert asked == [Describe, Assignment] * 3 + [Describe]

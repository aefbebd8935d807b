"""The card of a job, and the thread that updates it in a notebook."""

from __future__ import annotations

import pickle
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.client.job_card import BAD, GOOD, card
from dask_elastic.runtime.client.live_card import show
from dask_elastic.runtime.protocol.job_description import ControlView, JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.reports import ExecutorReport, InstanceRows
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus
from dask_elastic.vocab.errors import SchedulerLost

PAGE = "http://127.0.0.1:8787/elastic?job=flights"
EXECUTOR = ExecutorReport(
    operator="per_plane", executor=0, node=0, cores=2, arrival_rate=10.0, throughput=10.0, service_rate=None,
    customer_rows=1.0, bytes_in=0.0, bytes_out=0.0, queue=3, sojourn=None, latency_p50=0.02, latency_p99=0.09,
    state_bytes=64, rows=5, moves=1, moves_across=0,
)  # fmt: skip
RUNNING = JobDescription(
    name="flights", generation=1, status=Status.RUNNING, error=None, began=time.time(), ended=None,
    oversubscribed=False, latency_target=0.05, planner="elasticutor", paradigm="executor-centric", dry_run=False,
    pinned=(), nodes=("tcp://a:1",), components=(), executors=(EXECUTOR, replace(EXECUTOR, executor=1)),
    sources=(InstanceRows("rows", 0, 4_000, 800.0),), sinks=(), event_times=(), dead_letters={}, refused=0,
    control=ControlView(measured=0.03),
)  # fmt: skip
FINISHED = replace(RUNNING, status=Status.FINISHED, ended=RUNNING.began + 5)


def test_card_has_measures_target_link_and_executors():
    shown = card(RUNNING, PAGE)
    for part in (
        "flights: running",
        "50.00 ms",
        "30.00 ms",
        "p99 90.00 ms",
        ">800<",
        "4,000 rows",
        ">4<",
        "2 shard mov",
    ):
        assert part in shown
    assert f"<a href='{PAGE}'" in shown
    assert shown.count("<tr>") == 3
    assert "per_plane[1]" in shown


@pytest.mark.parametrize(("measured", "colour"), [(0.03, GOOD), (0.07, BAD)])
def test_card_colours_latency_by_the_target(measured, colour):
    shown = card(replace(RUNNING, control=ControlView(measured=measured)), PAGE)
    assert f"color: {colour}'>{measured * 1e3:.2f} ms" in shown


def test_card_without_measures_has_dashes():
    shown = card(replace(RUNNING, executors=(), latency_target=None, control=ControlView()), None)
    assert "p99 –" in shown
    assert ">none<" in shown
    assert "<a " not in shown
    assert "<table" not in shown


def test_card_escapes_names_and_lists_conditions_and_error():
    failed = replace(
        FINISHED,
        name="<b>flights",
        status=Status.FAILED,
        error=pickle.dumps(ValueError("a delay < 0")),
        oversubscribed=True,
        dead_letters={"tidy": 7},
    )
    shown = card(failed, PAGE, note="a note")
    for part in ("&lt;b&gt;flights: failed", "a delay &lt; 0", "oversubscribed", "7 dead letters of tidy", "a note"):
        assert part in shown
    assert "<b>" not in shown


def test_card_has_newest_checkpoint_restarts_and_error():
    failed = CheckpointDescription(8, began=61.0, seconds=0.5, error="no <space>")
    checkpoints = CheckpointStatus("/checkpoints", 7, 2.5, CheckpointDescription(7, 60.0, 0.25), failed, 1, 1)
    shown = card(replace(RUNNING, checkpoints=checkpoints), PAGE)
    assert ">checkpoint 7 of 2.50 s ago, 1 restart<" in shown
    assert "checkpoint 8 was given up: no &lt;space&gt;" in shown
    assert "checkpoint" not in card(RUNNING, PAGE)


class Handle:
    """What IPython's display returns."""

    def __init__(self):
        self.shown = []

    def update(self, view):
        self.shown.append(view)


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's display; the handle collects what a card is updated to."""
    handle = Handle()
    displayed = []

    def display(view, display_id):
        assert display_id is True
        displayed.append(view)
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return SimpleNamespace(handle=handle, displayed=displayed)


def scripted(*answers):
    """Return a function that answers in turn, and raises what is an exception."""
    left = list(answers)

    def follow(seconds):
        assert seconds == 0.5
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return follow


def test_live_card_is_updated_until_the_job_ends(notebook):
    later = replace(RUNNING, control=ControlView(measured=0.04))
    show(RUNNING, PAGE, scripted(later, FINISHED), 0.5).join(10)
    assert "30.00 ms" in notebook.displayed[0]._repr_html_()
    first, last = [view._repr_html_() for view in notebook.handle.shown]
    assert "40.00 ms" in first
    assert "flights: finished" in last
    assert "<table" not in last
    assert repr(notebook.handle.shown[-1]).startswith("flights: finished · 5 s · 4,000 rows")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SchedulerLost("the client is closed"), "the client is closed"),
        (replace(RUNNING, generation=2), "the job was submitted again"),
    ],
)
def test_live_card_names_the_reason_when_it_is_not_updated_any_more(notebook, answer, reason):
    show(RUNNING, PAGE, scripted(answer), 0.5).join(10)
    [last] = notebook.handle.shown
    assert f"Not updated any more: {reason}" in last._repr_html_()
    assert "30.00 ms" in last._repr_html_()


def test_live_card_of_an_ended_job_needs_no_thread(notebook):
    assert show(FINISHED, PAGE, scripted(), 0.5) is None
    assert "flights: finished" in notebook.displayed[0]._repr_html_()


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["script", "terminal"])
def test_live_card_is_one_line_outside_notebooks(monkeypatch, capsys, shell):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert show(RUNNING, PAGE, scripted(), 0.5) is None
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("flights: running")


def test_live_card_does_not_need_ipython(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert show(RUNNING, PAGE, scripted(), 0.5) is None
    assert capsys.readouterr().out.startswith("flights: running")

"""What a command says about the jobs that it leaves, for known descriptions."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest

from dask_elastic.cli.followed_jobs import leave, wait
from dask_elastic.runtime.protocol.job_calls import Stop
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.vocab.checkpoint import CheckpointStatus


@pytest.fixture
def asked(monkeypatch):
    """The calls to the scheduler, and the description of the one running job, with which it answers."""
    calls = []
    described = SimpleNamespace(live=True, checkpoints=None)

    def answer(client, call):
        calls.append(call)
        return described

    monkeypatch.setattr("dask_elastic.cli.followed_jobs.call_scheduler", answer)
    return SimpleNamespace(calls=calls, described=described)


@pytest.mark.parametrize(
    ("checkpoints", "resumes"),
    [
        (None, False),
        (CheckpointStatus("/folder", 0, None, None, None, 0, 0), False),
        (CheckpointStatus("/folder", 7, None, None, None, 0, 0), True),
    ],
)
def test_job_stopped_with_own_cluster_can_be_resumed_from_its_checkpoint(asked, capsys, checkpoints, resumes):
    asked.described.checkpoints = checkpoints
    assert leave(SimpleNamespace(submitted=["saved"], cluster=object())) == ["saved"]
    assert asked.calls[-1] == Stop("saved")
    shown = capsys.readouterr().err
    assert "Job 'saved' was stopped with the local cluster of this command.\n" in shown
    assert ("dask elastic resume /folder\n" in shown) == resumes


def test_job_on_another_cluster_continues(asked, capsys):
    client = SimpleNamespace(submitted=["saved"], cluster=None, scheduler=SimpleNamespace(address="tcp://a:1"))
    assert leave(client) == ["saved"]
    assert Stop("saved") not in asked.calls
    assert "Job 'saved' continues at tcp://a:1.\n" in capsys.readouterr().err


@pytest.mark.parametrize("hangs", [False, True])
def test_folder_that_may_still_change_after_the_end_is_named(asked, capsys, monkeypatch, hangs):
    monkeypatch.setattr("dask_elastic.cli.followed_jobs.one_line", lambda described: "saved: finished")
    vars(asked.described).update(
        name="saved", live=False, awaited=False, error=None, status=Status.FINISHED,
        checkpoints=SimpleNamespace(url="/folder"), unanswered="its storage" if hangs else "",
    )  # fmt: skip
    assert wait(object(), "saved") is None
    shown = capsys.readouterr().err
    changes = "Warning: job 'saved' has finished, but its storage did not answer, so that /folder may still change"
    assert (changes in shown) == hangs


def test_printed_commands_can_be_pasted_if_names_and_folders_have_spaces(asked, capsys):
    """A shell divides each into the words that were meant."""
    client = SimpleNamespace(submitted=["two words"], cluster=None, scheduler=SimpleNamespace(address="tcp://a:1"))
    leave(client)
    asked.described.checkpoints = CheckpointStatus("/my folder", 7, None, None, None, 0, 0)
    leave(SimpleNamespace(submitted=["it's"], cluster=object()))
    shown = capsys.readouterr().err.splitlines()
    commands = [shlex.split(line.partition(" it:")[2]) for line in shown if " it:" in line]
    assert commands == [
        ["dask", "elastic", "status", "two words", "--scheduler", "tcp://a:1"],
        ["dask", "elastic", "stop", "two words", "--scheduler", "tcp://a:1"],
        ["dask", "elastic", "resume", "/my folder"],
    ]

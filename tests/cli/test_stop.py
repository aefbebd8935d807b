from __future__ import annotations

import dask_elastic as de


def test_stopping_one_leaves_the_others(invoke, address, endless, client):
    endless("one")
    endless("other")
    ended = invoke("stop", "one", "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'one' is stopped.\n")
    assert {job.name: job.status for job in de.jobs(client)} == {"one": "stopped", "other": "running"}


def test_one_unknown_name_stops_nothing(invoke, address, endless):
    job = endless("kept")
    refused = invoke("stop", "kept", "kpet", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output == "Error: no job 'kpet': the cluster knows ['kept']\n"
    assert job.status == "running"


def test_drained_it_has_finished(invoke, address, endless):
    job = endless("drained")
    ended = invoke("stop", "drained", "--drain", "--timeout", 20, "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'drained' is finished.\n")
    read = job._describe().rows_read
    assert job.metrics()["rows"].sum() == read


def test_a_job_that_ended_is_not_said_to_be_stopped_now(invoke, address, endless):
    endless("over").drain(timeout=20)
    ended = invoke("stop", "over", "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'over' had ended already: it is finished.\n")


def test_forgotten_it_is_gone(invoke, address, endless, client):
    endless("gone")
    ended = invoke("stop", "gone", "--forget", "--scheduler", address)
    assert ended.output == "Job 'gone' is stopped.\nJob 'gone' is forgotten.\n"
    assert de.jobs(client) == []


def test_a_name_twice_is_stopped_once(invoke, address, endless):
    endless("twice")
    assert invoke("stop", "twice", "twice", "--scheduler", address).output == "Job 'twice' is stopped.\n"


def test_no_name_is_a_wrong_use(invoke, address):
    assert invoke("stop", "--scheduler", address).exit_code == 2


def test_a_timeout_without_a_drain_is_a_wrong_use(invoke, address):
    refused = invoke("stop", "any", "--timeout", 3, "--scheduler", address)
    assert refused.exit_code == 2
    assert "--drain" in refused.output

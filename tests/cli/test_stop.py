from __future__ import annotations

import dask_elastic as de


def test_stop_leaves_other_jobs_running(invoke, address, endless, client):
    endless("one")
    endless("other")
    ended = invoke("stop", "one", "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'one' is stopped.\n")
    assert {job.name: job.status for job in de.jobs(client)} == {"one": "stopped", "other": "running"}


def test_stop_with_an_unknown_name_stops_no_job(invoke, address, endless):
    job = endless("kept")
    refused = invoke("stop", "kept", "kpet", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output == "Error: no job 'kpet': the cluster knows ['kept']\n"
    assert job.status == "running"


def test_stop_with_drain_finishes_the_job(invoke, address, endless):
    job = endless("drained")
    ended = invoke("stop", "drained", "--drain", "--timeout", 100, "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'drained' is finished.\n")
    read = job._describe().rows_read
    assert job.metrics()["rows"].sum() == read


def test_stop_of_ended_job_reports_its_status(invoke, address, endless):
    endless("over").drain(timeout=100)
    ended = invoke("stop", "over", "--scheduler", address)
    assert (ended.exit_code, ended.output) == (0, "Job 'over' has already ended: it is finished.\n")


def test_stop_with_forget_removes_the_job(invoke, address, endless, client):
    endless("removed")
    ended = invoke("stop", "removed", "--forget", "--scheduler", address)
    assert ended.output == "Job 'removed' is stopped.\nJob 'removed' is forgotten.\n"
    assert de.jobs(client) == []


def test_stop_with_repeated_name_stops_once(invoke, address, endless):
    endless("twice")
    assert invoke("stop", "twice", "twice", "--scheduler", address).output == "Job 'twice' is stopped.\n"


def test_stop_without_name_is_wrong_usage(invoke, address):
    assert invoke("stop", "--scheduler", address).exit_code == 2


def test_stop_with_timeout_but_without_drain_is_wrong_usage(invoke, address):
    refused = invoke("stop", "any", "--timeout", 3, "--scheduler", address)
    assert refused.exit_code == 2
    assert "--drain" in refused.output

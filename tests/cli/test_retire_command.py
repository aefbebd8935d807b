from __future__ import annotations

import pytest
from distributed import LocalCluster

import dask_elastic as de


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers."""
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def job(endless):
    """Return a running job whose executor has a task on both workers."""
    found = endless("spread")
    found.set_cores("per_key", dict.fromkeys(found.client.nthreads(), 1))
    return found


def guest(job):
    """Return the address of the worker that is not the home of the executor."""
    [home] = set(job.assignment()["home"])
    [other] = set(job.client.nthreads()) - {home}
    return home, other


def test_retire_moves_tasks_off_a_worker_and_closes_it(invoke, address, job, wait_until):
    home, other = guest(job)
    refused = invoke("retire", home, "--scheduler", address)
    assert refused.exit_code == 1
    assert f"worker {home} cannot be drained: it hosts numbers[0] of job " in refused.output
    done = invoke("retire", other, "--scheduler", address)
    assert (done.exit_code, done.output) == (0, f"{other}: retired, and can be closed.\n")
    assert set(job.assignment()["node"]) == {home}
    closed = invoke("retire", other, "--close", "--timeout", 100, "--scheduler", address)
    assert (closed.exit_code, closed.output) == (0, f"{other}: closed.\n")
    assert [*job.client.scheduler_info()["workers"]] == [home]
    assert job.status == "running"


def test_retire_waits_until_the_timeout(invoke, address, client, monkeypatch):
    waits = []

    def never(workers, client, seconds):
        waits.append(seconds)
        raise TimeoutError("per_key[0] still runs there")

    monkeypatch.setattr("dask_elastic.cli.changes.retire.retire_workers", never)
    monkeypatch.setattr("dask_elastic.cli.changes.retire.STEP_SECONDS", 0.05)
    refused = invoke("retire", "tcp://a:1", "--timeout", 0.1, "--scheduler", address)
    assert (refused.exit_code, refused.output) == (1, "Error: per_key[0] still runs there\n")
    assert all(0 <= seconds <= 0.05 for seconds in waits)


def test_retire_of_unknown_worker_lists_the_workers(invoke, address, job):
    refused = invoke("retire", "tcp://a:1", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: there is no worker 'tcp://a:1': the workers are inproc://")
    assert de.job("spread", job.client).status == "running"

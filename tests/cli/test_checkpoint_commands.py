"""The commands that take checkpoints, list them, and continue a job from them."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.checkpoints.view import checkpoint_table
from dask_elastic.cli.descriptions import descriptions
from dask_elastic.cli.terminal.console import plain_text
from dask_elastic.cli.terminal.quantities import clock
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.vocab.checkpoint import CheckpointDescription


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def saved(client, folder):
    """A job with checkpoints that runs for minutes, and takes none by itself."""
    topology = de.Topology("saved")
    rows = pa.table({"key": np.arange(100_000) % 10})
    source = topology.source("rows", de.sources.Arrow(rows, rate=200, batch_rows=10))
    source.key_by("key").compute({"count": agg.Count()}, name="per_key", executors=1)
    return de.submit(topology, client, checkpoint=folder, checkpoint_interval="1h")


def test_checkpoint_is_taken_listed_and_resumed(invoke, address, cluster, client, folder, saved, wait_until):
    none = invoke("checkpoints", "saved", "--scheduler", address)
    assert none.output == "Job 'saved' has taken no checkpoint yet.\n"
    for number in (1, 2):
        taken = invoke("checkpoint", "saved", "--scheduler", address)
        assert (taken.exit_code, taken.stdout) == (0, f"{number}\n")
    head, *rows = invoke("checkpoints", "saved", "--scheduler", address).stdout.splitlines()
    assert head.split() == ["checkpoint", "began", "took", "written", "held", "error"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    [newest] = json.loads(invoke("checkpoints", "saved", "--last", 1, "--json", "--scheduler", address).stdout)
    assert (newest["number"], newest["error"]) == (2, None)
    status = invoke("status", "saved", "--scheduler", address).stdout
    assert f"Checkpoints in {folder}: checkpoint 2 of " in status
    url = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/metrics"
    number = re.compile(r'^dask_elastic_checkpoint_number\{[^}]*job="saved"[^}]*\} 2\.0$', re.MULTILINE)
    wait_until(lambda: number.search(urlopen(url, timeout=20).read().decode()), "the metric of the job")
    saved.stop()

    options = ("--name", "again", "--number", 1, "--cores", "per_key=2", "--detach")
    detached = invoke("resume", folder, *options, "--scheduler", address)
    assert detached.exit_code == 0
    assert "Job 'again': resumed from checkpoint 1.\n" in detached.stderr
    assert f"dask elastic stop again --scheduler {address}" in detached.stderr
    again = de.job("again", client)
    wait_until(lambda: again.metrics()["cores"].sum() == 2, "the first measures")
    again.stop()

    def running():
        return any((job.name, job.status) == ("saved", Status.RUNNING) for job in descriptions(client))

    def stop_once_running():
        try:
            wait_until(running, "the job is resumed")
        finally:
            saved.stop()

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop_once_running)
        followed = invoke("resume", folder, "--scheduler", address)
        stopped.result()
    assert followed.exit_code == 1
    # The run in between continued from checkpoint 1, so checkpoint 2 is void.
    assert "Job 'saved': resumed from checkpoint 1.\n" in followed.stderr
    assert followed.stderr.endswith("Error: job 'saved' was stopped\n")


def test_resume_refuses_wrong_operators_and_ctrl_c_leaves_the_resumed_job_running(
    invoke, address, client, folder, saved, monkeypatch
):
    saved.checkpoint()
    saved.stop()
    refused = invoke("resume", folder, "--cores", "typo=2", "--scheduler", address)
    assert refused.exit_code == 1
    last = refused.stderr.splitlines()[-1]
    assert last == "Error: cores= names 'typo', which is no stateful operator: choose from ['per_key']"
    assert "Traceback" not in refused.stderr

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("dask_elastic.cli.checkpoints.resume.wait", interrupt)
    ended = invoke("resume", folder, "--scheduler", address)
    assert ended.exit_code == 130
    assert f"Job 'saved' continues at {address}" in ended.stderr
    assert de.job("saved", client).status == "running"


def test_job_without_checkpoints_is_an_error(invoke, address, endless):
    endless("plain")
    for command in ("checkpoint", "checkpoints"):
        refused = invoke(command, "plain", "--scheduler", address)
        assert refused.exit_code == 1
        assert "job 'plain' takes no checkpoints: submit it with checkpoint=" in refused.output


def test_resume_of_a_folder_without_checkpoints_is_an_error(invoke, address, client, tmp_path):
    refused = invoke("resume", tmp_path / "empty", "--scheduler", address)
    assert refused.exit_code == 1
    assert str(tmp_path / "empty") in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("cores", ["2", "=2", "per_key=", "per_key=two", "per_key=-1"])
def test_resume_with_wrong_cores_is_wrong_usage(invoke, cores, tmp_path):
    refused = invoke("resume", tmp_path, "--cores", cores)
    assert refused.exit_code == 2
    assert "is not OPERATOR=N" in refused.output


def test_table_has_error_instead_of_sizes_for_checkpoint_that_was_given_up():
    complete = CheckpointDescription(7, began=60.0, seconds=0.25, nbytes=2048, held=0.01)
    failed = CheckpointDescription(8, began=61.0, seconds=0.5, error="the disk is full\nand more")
    _, first, second = plain_text(checkpoint_table([complete, failed])).splitlines()
    assert first.split() == ["7", clock(60.0), "250.00", "ms", "2.00", "kiB", "10.00", "ms"]
    assert second.split() == ["8", clock(61.0), "500.00", "ms", "the", "disk", "is", "full"]


def test_job_is_stopped_with_a_savepoint_and_continues_from_it(invoke, address, saved, wait_until, tmp_path):
    wait_until(lambda: saved.metrics()["rows"].sum() > 0, "rows are processed")
    taken = invoke("savepoint", "saved", tmp_path / "first", "--scheduler", address)
    assert (taken.exit_code, taken.stdout) == (0, "1\n")
    refused = invoke("stop", "saved", "--savepoint", tmp_path / "first", "--scheduler", address)
    assert refused.exit_code == 1
    assert "Give each savepoint a new folder" in refused.stderr
    assert saved.status == "running"
    refused = invoke("stop", "saved", "--savepoint", tmp_path / "second", "--drain", "--scheduler", address)
    assert refused.exit_code == 2
    stopped = invoke("stop", "saved", "--savepoint", tmp_path / "second", "--scheduler", address)
    assert stopped.output.splitlines()[-1] == "Job 'saved' is stopped."
    ended = invoke("stop", "saved", "--savepoint", tmp_path / "third", "--scheduler", address)
    assert ended.exit_code == 1
    assert "job 'saved' is stopped: its savepoint was not taken" in ended.stderr
    options = ("--checkpoint", tmp_path / "own", "--name", "again", "--detach")
    resumed = invoke("resume", tmp_path / "second", *options, "--scheduler", address)
    assert resumed.exit_code == 0, resumed.stderr
    assert "Job 'again': resumed from checkpoint 2.\n" in resumed.stderr

"""Jobs with checkpoints survive the loss of homes, sources, sinks and the scheduler, and show each row once."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import dask
import pyarrow.dataset as ds
import pytest
from counting_jobs import NUMBERS, RUN, counting, counting_rows
from distributed import Client

import dask_elastic as de
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import note_ended
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.checkpoint.sweep import sweep
from dask_elastic.checkpoint.takeover import requested, reserve_generation
from dask_elastic.topology.source import Source
from dask_elastic.vocab import errors
from dask_elastic_plugins import install

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import ROWS, Gated, assert_each_row_once, counted, expected, followed, newest, written

sys.path.pop(0)

QUICK = {"elastic.heartbeat-interval": "500ms", "elastic.heartbeat-timeout": "1500ms"}


def kill(client, address):
    """End a worker's process without warning."""
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)


def test_rows_appear_with_checkpoints_and_the_last_ones_with_a_final_one(client, wait_until, tmp_path):
    out, gate = tmp_path / "out", tmp_path / "gate"
    topology = followed(out, rate=20_000, gate=gate)
    job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="200ms")
    wait_until(lambda: newest(job) >= 2, "two checkpoints are complete")
    wait_until(lambda: out.exists() and 0 < written(out).num_rows < ROWS.num_rows, "some rows are visible")
    gate.touch()
    job.wait(**RUN)
    assert counted(job) == expected()
    assert_each_row_once(out)
    table = job.checkpoints()
    assert table["error"].isna().all()
    assert (table["nbytes"] > 0).any()
    with pytest.raises(errors.JobEnded, match="takes no more checkpoints"):
        job.checkpoint()


def test_killed_workers_restart_the_job_with_each_row_counted_and_shown_once(small_cluster, wait_until, tmp_path):
    """The second one is killed while the job restarts to leave another worker."""
    out, gate = tmp_path / "out", tmp_path / "gate"
    topology = followed(out, rate=5_000, gate=gate)
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")

        def after_a_checkpoint():
            before = newest(job)
            wait_until(lambda: newest(job) > before, "another checkpoint is complete")
            return job._describe().generation, job.assignment()["home"][0]

        generation, home = after_a_checkpoint()
        kill(client, first := home)
        assert first not in job.assignment()["home"].tolist()
        assert job._describe().generation > generation
        assert counted(job).keys() <= expected().keys()
        generation, home = after_a_checkpoint()
        other = next(address for address in job._describe().nodes if address not in (home, ""))
        process = client.run(os.getpid, workers=[other])[other]
        retiring = threading.Thread(target=de.retire, args=(home, client, "100s"))
        retiring.start()
        wait_until(lambda: job.status == "restarting" or job._describe().generation > generation, "the job leaves")
        os.kill(process, signal.SIGKILL)
        retiring.join(100)
        assert not retiring.is_alive()
        assert home not in job._describe().nodes
        gate.touch()
        job.wait(**RUN)
        assert counted(job) == expected()
        assert_each_row_once(out)
        restarts = job.restarts()
        assert restarts["planned"].tolist()[:2] == [False, True]
        assert restarts["workers"][0] == [first]
        assert first in restarts["reason"][0]
        assert restarts["checkpoint"].is_monotonic_increasing
        assert restarts["checkpoint"][0] > 0
        assert 0 < restarts["seconds"][0] < 100


def test_cores_on_other_workers_get_their_shards_again_after_a_restart(small_cluster, wait_until, tmp_path):
    out, gate = tmp_path / "out", tmp_path / "gate"
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        topology = followed(out, rate=5_000, parallel=1, gate=gate, executors=1)
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
        job.set_cores("followed", dict.fromkeys(client.nthreads(), 1))
        wait_until(lambda: job.assignment()["remote"].sum() == 2, "the executor has remote tasks")
        before = newest(job)
        wait_until(lambda: newest(job) > before + 1, "checkpoints are complete with remote tasks")
        kill(client, job.assignment()["home"][0])
        gate.touch()
        job.wait(**RUN)
        assert counted(job) == expected()
        assert_each_row_once(out)
        assert job.state("followed").to_pandas()["faults"].sum() == 0


def test_job_resumes_on_a_new_cluster_with_other_executors(small_cluster, wait_until, tmp_path):
    out, folder, gate = tmp_path / "out", tmp_path / "checkpoints", tmp_path / "gate"
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(followed(out, gate=gate), client, checkpoint=folder, checkpoint_interval="10s")
        wait_until(lambda: job.metrics()["rows"].sum() > 2_000, "rows are processed")
        number = job.checkpoint()
        job.stop()
    with Client(small_cluster(n_workers=1, threads_per_worker=2), set_as_default=False) as client:
        with pytest.raises(errors.SubmitError, match=r"dask_elastic\.resume"):
            de.submit(followed(out), client, checkpoint=folder)
        with pytest.raises(errors.SubmitError, match=r"evenly\. Choose executors= from 1, 2, 4, 8, 16, 32"):
            de.resume(folder, client, topology=followed(out, executors=3))
        again = de.resume(folder, client, topology=followed(out, executors=4))
        wait_until(lambda: again.metrics()["executor"].nunique() == 4, "four executors report")
        again.wait(**RUN)
        assert counted(again) == expected()
        assert_each_row_once(out)
        assert newest(again) > number
    table = de.read_state(folder, "followed").to_pylist()
    assert {row["k"]: (row["n"], row["sum"], row["low"], row["high"]) for row in table} == expected()


def test_job_without_a_complete_checkpoint_restarts_from_the_beginning(small_cluster, wait_until, tmp_path):
    out, gate = tmp_path / "out", tmp_path / "gate"
    topology = followed(out, gate=gate)
    with Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="1h")
        wait_until(lambda: job.metrics()["rows"].sum() > 2_000, "rows are processed")
        kill(client, job.assignment()["home"][0])
        gate.touch()
        job.wait(**RUN)
        assert counted(job) == expected()
        assert_each_row_once(out)


def test_job_that_another_scheduler_has_continued_fails_and_commits_nothing_more(client, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    job = de.submit(followed(out, rate=1_000), client, checkpoint=folder, checkpoint_interval="1h")
    # As the other scheduler does first.
    catalog = Catalog(CheckpointFolder(folder))
    requested(reserve_generation(catalog))
    with pytest.raises(errors.ElasticError, match="another scheduler has continued the job"):
        job.checkpoint()
    with pytest.raises(errors.ElasticError, match="another scheduler has continued the job"):
        job.wait(**RUN)
    assert job.status == "failed"
    assert not [*out.glob("*.parquet")]


def test_job_that_loses_its_workers_again_and_again_fails_clearly(small_cluster, wait_until, tmp_path):
    topology = followed(tmp_path / "out", rate=100)
    with Client(small_cluster(n_workers=1, threads_per_worker=2), set_as_default=False) as client:
        options = {"checkpoint": tmp_path / "checkpoints", "checkpoint_interval": "1h", "restart_attempts": 1}
        job = de.submit(topology, client, **options)
        generation = job._describe().generation
        kill(client, next(iter(client.nthreads())))
        wait_until(lambda: job.status == "failed" or job._describe().generation > generation, "the job restarts")
        if job.status != "failed":
            wait_until(lambda: job.status in ("running", "failed"), "the job runs again")
            kill(client, next(iter(client.nthreads())))
        with pytest.raises(errors.JobFailed, match="restarted 1 times from checkpoint 0 without a new checkpoint"):
            job.wait(**RUN)


class Once(Source):
    """A source that cannot rewind."""

    replayable = False

    def read(self, context):
        """Yield the rows, which could not be read again."""
        yield NUMBERS.to_batches()[0], None


def test_what_cannot_take_checkpoints_is_refused_at_submit(client, tmp_path):
    with pytest.raises(errors.SubmitError, match=r"source 'rows'.*cannot rewind"):
        de.submit(counting(Once()), client, checkpoint=tmp_path)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(errors.CheckpointError, match="cannot write"):
        de.submit(counting_rows(NUMBERS), client, checkpoint=tmp_path / "file" / "folder")
    job = de.submit(counting_rows(NUMBERS), client)
    with pytest.raises(errors.CheckpointError, match="submit it with checkpoint="):
        job.checkpoint()
    with pytest.raises(errors.NoCheckpoint):
        de.resume(tmp_path / "nothing", client)


def test_sinks_that_end_early_hold_up_neither_checkpoints_nor_the_end(client, wait_until, tmp_path):
    topology = de.Topology("ends")
    for name, count in (("short", 2_000), ("long", 20_000)):
        rows = topology.source(name, de.sources.Arrow(ROWS.slice(0, count), rate=8_000, batch_rows=500))
        counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name=f"per_{name}", executors=2)
        counted.sink(de.sinks.Parquet(tmp_path / name), name=f"{name}_out")
    job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
    job.wait(**RUN)
    assert job.checkpoints()["error"].isna().all()
    assert job.state("per_short").to_pandas()["n"].sum() == 2_000
    assert ds.dataset(tmp_path / "long", format="parquet").count_rows() > 0


@pytest.mark.parametrize("drained", [False, True], ids=["end of input", "drain"])
def test_last_checkpoint_has_all_rows_of_operators_without_sinks(client, wait_until, tmp_path, drained):
    """The sink of the short input commits long before the other input ends."""
    folder, gate = tmp_path / "checkpoints", tmp_path / "gate"
    topology = de.Topology("sinkless")
    short = topology.source("short", de.sources.Arrow(ROWS.slice(0, 500))).key_by("k")
    short.compute({"n": de.aggregate.Count()}, name="shown").sink(de.sinks.Parquet(tmp_path / "out"), name="out")
    rows = topology.source("long", Gated(ROWS, gate, batch_rows=700)).key_by("k")
    rows.compute({"n": de.aggregate.Count()}, name="kept", executors=2)
    job = de.submit(topology, client, checkpoint=folder, checkpoint_interval="100s")
    wait_until(lambda: newest(job) >= 1, "the short input is committed")
    if drained:
        job.drain(100)
    else:
        gate.touch()
        job.wait(**RUN)
    counted = job.state("kept").to_pandas()["n"].sum()
    assert drained or counted == ROWS.num_rows
    assert job.status == "finished"
    assert sum(de.read_state(folder, "kept")["n"].to_pylist()) == counted
    gate.touch()
    again = de.resume(folder, client)
    again.wait(**RUN)
    assert again.state("kept").to_pandas()["n"].sum() == ROWS.num_rows


@pytest.mark.parametrize("late", [False, True], ids=["wait before the end", "wait after the end"])
def test_wait_returns_when_nothing_more_is_written_to_the_folder(client, wait_until, monkeypatch, tmp_path, late):
    noting, returned, order = threading.Event(), threading.Event(), []

    def noted(folder, generation):
        noting.set()
        # Nothing else tells that `wait` does not return now.
        returned.wait(0.5)
        note_ended(folder, generation)
        order.append("noted")

    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.note_ended", noted)
    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.NOTED_SECONDS", 100.0)
    job = de.submit(followed(tmp_path / "out"), client, checkpoint=tmp_path / "checkpoints")
    if late:
        wait_until(noting.is_set, "the job has ended")
    job.wait(**RUN)
    order.append("returned")
    returned.set()
    wait_until(lambda: len(order) == 2, "the end of the job is noted")
    assert order == ["noted", "returned"]
    shutil.rmtree(tmp_path / "checkpoints")


@pytest.mark.parametrize("stopped", [False, True])
def test_end_is_awaited_until_no_old_files_are_being_deleted(client, wait_until, monkeypatch, tmp_path, stopped):
    sweeping, returned, order = threading.Event(), threading.Event(), []

    def sweeps(*arguments, **options):
        sweeping.set()
        # Nothing else tells that `wait` or `stop` does not return now.
        returned.wait(0.5)
        swept = sweep(*arguments, **options)
        order.append("swept")
        return swept

    monkeypatch.setattr("dask_elastic.runtime.scheduler.checkpoints.sweep", sweeps)
    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.NOTED_SECONDS", 100.0)
    gate = tmp_path / "gate" if stopped else None
    job = de.submit(followed(tmp_path / "out", gate=gate), client, checkpoint=tmp_path / "checkpoints")
    if stopped:
        job.checkpoint()
        wait_until(sweeping.is_set, "old files are being deleted")
        job.stop()
    else:
        job.wait(**RUN)
    order.append("returned")
    returned.set()
    wait_until(lambda: "swept" in order, "old files are deleted")
    assert order[-1] == "returned"
    shutil.rmtree(tmp_path / "checkpoints")


def test_job_that_is_drained_continues_where_its_sources_stopped(client, wait_until, tmp_path):
    out, folder, gate = tmp_path / "out", tmp_path / "checkpoints", tmp_path / "gate"
    job = de.submit(followed(out, gate=gate), client, checkpoint=folder, checkpoint_interval="10s")
    wait_until(lambda: job.metrics()["rows"].sum() > 2_000, "rows are processed")
    job.drain(100)
    before = written(out).num_rows
    assert 2_000 < before < ROWS.num_rows
    gate.touch()
    again = de.resume(folder, client)
    again.wait(**RUN)
    assert counted(again) == expected()
    assert_each_row_once(out)


def test_checkpoint_with_other_sources_is_refused(client, wait_until, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    job = de.submit(followed(out, gate=tmp_path / "gate"), client, checkpoint=folder)
    wait_until(lambda: job.metrics()["rows"].sum() > 500, "rows are processed")
    job.checkpoint()
    job.stop()
    with pytest.raises(errors.SubmitError, match="Give it parallel=2"):
        de.resume(folder, client, topology=followed(out, parallel=3))
    other = de.Topology("durable")
    other.source("rows", de.sources.Arrow(ROWS, parallel=2)).sink(de.sinks.Parquet(out), name="out")
    with pytest.raises(errors.SubmitError, match="'followed', which the topology lacks"):
        de.resume(folder, client, topology=other)


WRONG = {
    r"cores= names 'typo', .*choose from \['followed'\]": {"cores": {"typo": 2}},
    r"cores=\{'followed': 'x'\}: an executor has at least one core": {"cores": {"followed": "x"}},
    r"cores=2: give the cores of single operators": {"cores": 2},
    r"migration names 'typo'": {"migration": {"typo": "smooth"}},
    r"drop= names 'typo', which checkpoint 2 lacks: choose from \['followed', 'out', 'rows'\]": {"drop": ["typo"]},
    r"drop= names 'followed', with which the job continues": {"drop": ["followed"]},
    r"drop='followed': give the names": {"drop": "followed"},
    r"job: the name is 5": {"name": 5},
    r"job: the name is empty": {"name": ""},
}


def test_folder_of_running_job_and_wrong_options_of_resume_are_refused(client, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "checkpoints"
    topology = followed(out, gate=tmp_path / "gate")
    job = de.submit(topology, client, checkpoint=folder, checkpoint_interval="1h")

    def resumed():
        de.resume(folder, client, name="two")

    for again in (lambda: de.submit(topology, client, name="two", checkpoint=f"file://{folder}/"), resumed):
        with pytest.raises(errors.SubmitError, match="job 'durable' is running with this folder: stop it first"):
            again()
        # Fails if another run had taken the folder.
        job.checkpoint()
    job.stop()
    before = counted(job)
    for match, options in WRONG.items():
        with pytest.raises(errors.SubmitError, match=match):
            de.resume(folder, client, **options)
        if "migration" not in options:
            with pytest.raises(errors.SubmitError, match=match):
                de.resume(folder, client, topology=topology, **options)
    with pytest.raises(TypeError, match="resume takes a Topology as topology=, not int"):
        de.resume(folder, client, topology=5)
    assert [job.name for job in de.jobs(client)] == [job.name]
    assert (job.status, counted(job)) == ("stopped", before)


def test_suspended_home_that_wakes_after_restart_changes_neither_state_nor_files(
    small_cluster, wait_until, monkeypatch, tmp_path
):
    monkeypatch.setattr(install, "PATIENCE", 1.0)
    out, rows = tmp_path / "out", ROWS.slice(0, 20_000)
    with (
        dask.config.set(QUICK),
        Client(small_cluster(n_workers=2, threads_per_worker=2), set_as_default=False) as client,
    ):
        processes = client.run(os.getpid)
        job = de.submit(
            followed(out, rows, rate=4_000), client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms"
        )
        wait_until(lambda: newest(job), "a checkpoint is complete")
        home, generation = job.assignment()["home"][0], job._describe().generation
        os.kill(processes[home], signal.SIGSTOP)
        try:
            wait_until(lambda: job._describe().generation > generation, "the job restarts")
            before = newest(job)
            wait_until(lambda: newest(job) > before, "a checkpoint is complete without the suspended worker")
            assert home not in job.assignment()["home"].tolist()
        finally:
            os.kill(processes[home], signal.SIGCONT)
        assert client.run(os.getpid, workers=[home])[home] == processes[home]
        before = newest(job)
        wait_until(lambda: newest(job) > before or not job._describe().live, "checkpoints go on")
        job.wait(**RUN)
        assert counted(job) == expected(rows)
        assert_each_row_once(out, rows)


def fill_disk():
    """Let every write of a checkpoint's file in this process fail."""

    def write(self, path, buffers):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    if not hasattr(LocalFiles, "write_before"):
        LocalFiles.write, LocalFiles.write_before = write, LocalFiles.write


def free_disk():
    """Let writes succeed again."""
    LocalFiles.write = LocalFiles.write_before
    del LocalFiles.write_before


class SmallDisk:
    """A file system of a few megabytes in memory, which can be filled."""

    def __init__(self, folder):
        self.folder = folder
        self.ballast = folder / "ballast"

    def fill(self):
        with self.ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self):
        self.ballast.unlink()


class PretendedDisk:
    """The same on machines where a test may not mount file systems: writes fail in the processes of the workers."""

    def __init__(self, folder, client):
        self.folder, self.client = folder, client

    def fill(self):
        self.client.run(fill_disk)

    def free(self):
        self.client.run(free_disk)


@pytest.fixture
def disk(client, tmp_path):
    """A disk that can be filled: a small tmpfs where mounting is permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield PretendedDisk(folder, client)
        return
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_gives_checkpoints_up_and_job_goes_on_until_there_is_space(
    client, disk, wait_until, caplog, tmp_path
):
    out, gate = tmp_path / "out", tmp_path / "gate"
    topology = followed(out, rate=20_000, gate=gate)
    job = de.submit(topology, client, checkpoint=disk.folder / "checkpoints", checkpoint_interval="200ms")
    generation = job._describe().generation
    wait_until(lambda: newest(job), "a checkpoint is complete")

    def given_up_twice():
        # Old checkpoints, which are deleted meanwhile, would leave the next ones the space that these need.
        disk.fill()
        return job.checkpoints()["error"].notna().sum() >= 2

    try:
        wait_until(given_up_twice, "checkpoints are given up")
        given_up = job.checkpoints()["error"].dropna()
        assert given_up.str.contains("No space left on device").all()
        assert job.status == "running"
        before = newest(job)
    finally:
        disk.free()
    wait_until(lambda: newest(job) > before, "a checkpoint is complete again")
    gate.touch()
    job.wait(**RUN)
    assert "was given up: cannot write" in caplog.text
    assert job._describe().generation == generation
    assert counted(job) == expected()
    assert_each_row_once(out)

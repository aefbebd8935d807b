"""The end of a job awaits what its workers are writing to the folder of its checkpoints, so that it can be deleted."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run, note_ended
from dask_elastic.checkpoint.local_files import LocalFiles
from dask_elastic.vocab.errors import JobStopped

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import followed

sys.path.pop(0)


class SlowWrites:
    """Files of state are written once a call has returned, or after some time."""

    def __init__(self, patience):
        self.begun, self.released, self.done = threading.Event(), threading.Event(), threading.Event()
        self.write, self.patience = LocalFiles.write, patience

    def patch(self):
        """Return the method that replaces `LocalFiles.write`."""

        def write(files, path, buffers):
            if not path.startswith("state/"):
                return self.write(files, path, buffers)
            self.begun.set()
            self.released.wait(self.patience)
            written = self.write(files, path, buffers)
            self.done.set()
            return written

        return write


@pytest.fixture
def slow(monkeypatch):
    """Writes of state that take half a second, since nothing else tells that the end of the job does not return."""
    writes = SlowWrites(0.5)
    monkeypatch.setattr(LocalFiles, "write", writes.patch())
    return writes


@pytest.fixture
def client(small_cluster):
    """A cluster in this process, of one worker, which hosts one executor."""
    with Client(small_cluster(n_workers=1, threads_per_worker=2, processes=False), set_as_default=False) as client:
        yield client


def begun(client, tmp_path, wait_until, slow, **options):
    """Start a job, and return it when it writes state for a checkpoint."""
    topology = followed(tmp_path / "out", gate=tmp_path / "gate", parallel=1, executors=1)
    job = de.submit(
        topology, client, checkpoint=tmp_path / "checkpoints", **{"checkpoint_interval": "100ms", **options}
    )
    wait_until(slow.begun.is_set, "state is being written")
    return job


@pytest.mark.parametrize("end", ["stop", "forget", "wait"])
def test_no_file_appears_after_the_end_of_a_job(client, wait_until, slow, tmp_path, end):
    job = begun(client, tmp_path, wait_until, slow)
    if end == "wait":
        stopping = threading.Thread(target=job.stop)
        stopping.start()
        with pytest.raises(JobStopped):
            job.wait(**RUN)
    else:
        getattr(job, end)()
    finished = slow.done.is_set()
    shutil.rmtree(tmp_path / "checkpoints")
    slow.released.set()
    assert finished
    if end == "wait":
        stopping.join(100)
    assert not (tmp_path / "checkpoints").exists()


def writes(tmp_path):
    """What a wait of half a second says of the folder."""
    return f"it was still writing its last files to {tmp_path}/checkpoints after 0.5 s: wait again before you delete it"


def test_wait_for_a_finished_job_ends_by_its_timeout_while_the_storage_hangs(
    client, wait_until, monkeypatch, slow, tmp_path
):
    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.NOTED_SECONDS", 100.0)
    slow.released.set()
    released = threading.Event()

    def hanging(*_):
        released.wait(100)

    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.note_ended", hanging)
    job = de.submit(followed(tmp_path / "out", parallel=1, executors=1), client, checkpoint=tmp_path / "checkpoints")
    wait_until(lambda: job.status == "finished", "the job has ended")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"'durable' has finished, but {writes(tmp_path)}"):
        job.wait(timeout=0.5, progress=False)
    assert time.monotonic() - began < 50
    released.set()
    job.wait(**RUN)


@pytest.mark.parametrize("end", ["wait", "stop"])
def test_end_of_a_job_warns_of_a_folder_whose_storage_hangs(client, wait_until, monkeypatch, slow, tmp_path, end):
    for name in ("NOTED_SECONDS", "SETTLED_SECONDS"):
        monkeypatch.setattr(f"dask_elastic.runtime.scheduler.part_ends.{name}", 0.2)
    slow.released.set()
    released = threading.Event()

    def hanging(*arguments):
        released.wait(100)
        return note_ended(*arguments)

    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.note_ended", hanging)
    gate = tmp_path / "gate" if end == "stop" else None
    job = de.submit(followed(tmp_path / "out", gate=gate, parallel=1), client, checkpoint=tmp_path / "checkpoints")
    ended = "was stopped" if end == "stop" else "has finished"
    changes = f"'durable' {ended}, but its storage did not answer, so that {tmp_path}/checkpoints may still change"
    with pytest.warns(UserWarning, match=changes):
        job.wait(progress=False) if end == "wait" else job.stop()
    released.set()
    wait_until(lambda: not may_run(CheckpointFolder(tmp_path / "checkpoints")), "the end is noted")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.wait(**RUN) if end == "wait" else job.stop()


def test_wait_for_a_stopped_job_ends_by_its_timeout_while_the_storage_hangs(client, wait_until, monkeypatch, tmp_path):
    monkeypatch.setattr("dask_elastic.runtime.worker.part_checkpoints.LAST_SECONDS", 100.0)
    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.PARTS_SECONDS", 100.0)
    hanging = SlowWrites(100)
    monkeypatch.setattr(LocalFiles, "write", hanging.patch())
    job = begun(client, tmp_path, wait_until, hanging)
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    wait_until(lambda: job.status == "stopped", "the job has ended")
    began = time.monotonic()
    with pytest.raises(JobStopped) as raised:
        job.wait(timeout=0.5, progress=False)
    assert time.monotonic() - began < 50
    assert raised.value.__notes__ == [f"After its end, {writes(tmp_path)}."]
    hanging.released.set()
    stopping.join(100)
    with pytest.raises(JobStopped) as settled:
        job.wait(**RUN)
    assert not hasattr(settled.value, "__notes__")


def test_storage_that_hangs_is_named_and_does_not_hold_up_the_end_of_a_job(
    client, wait_until, monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr("dask_elastic.runtime.worker.part_checkpoints.LAST_SECONDS", 0.2)
    hanging = SlowWrites(100)
    monkeypatch.setattr(LocalFiles, "write", hanging.patch())
    monkeypatch.setattr("dask_elastic.runtime.scheduler.part_ends.NOTED_SECONDS", 100.0)
    job = begun(client, tmp_path, wait_until, hanging)
    changes = f"'durable' was stopped, but its storage did not answer, so that {tmp_path}/checkpoints may still change"
    with pytest.warns(UserWarning, match=changes):
        job.stop()
    assert not hanging.done.is_set()
    (warning,) = {r.getMessage() for r in caplog.records if "these files may still appear" in r.getMessage()}
    assert f"{tmp_path}/checkpoints/state/" in warning
    assert "'durable'" in warning
    hanging.released.set()
    wait_until(hanging.done.is_set, "the file is written")
    with pytest.raises(JobStopped) as settled:
        job.wait(**RUN)
    assert not hasattr(settled.value, "__notes__")

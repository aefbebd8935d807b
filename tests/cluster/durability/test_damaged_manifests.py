"""A job resumes from the newest checkpoint whose manifest and files are whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de
from dask_elastic.checkpoint.manifest_file import path_of
from dask_elastic.vocab.errors import CheckpointCorrupt

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import counted, expected, followed

sys.path.pop(0)


@pytest.fixture
def client(small_cluster):
    """A cluster in this process."""
    with Client(small_cluster(n_workers=1, threads_per_worker=2, processes=False), set_as_default=False) as client:
        yield client


def test_resume_skips_damaged_manifests_with_a_warning(client, wait_until, caplog, tmp_path):
    folder, gate = tmp_path / "checkpoints", tmp_path / "gate"
    topology = followed(tmp_path / "out", gate=gate, parallel=1)
    job = de.submit(topology, client, checkpoint=folder, checkpoint_interval="1h")
    wait_until(lambda: job.metrics()["rows"].sum() > 1_000, "rows are processed")
    first, second = job.checkpoint(), job.checkpoint()
    job.stop()
    manifests = {number: folder / path_of(number) for number in (first, second)}
    whole = manifests[first].read_bytes()
    for path in manifests.values():
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointCorrupt, match=manifests[second].name):
        de.resume(folder, client)
    manifests[first].write_bytes(whole)
    with pytest.raises(CheckpointCorrupt, match=manifests[second].name):
        de.resume(folder, client, number=second)
    caplog.clear()
    again = de.resume(folder, client)
    skipped = [record for record in caplog.records if f"checkpoint {second} of {folder} is skipped" in record.message]
    assert {record.levelname for record in skipped} == {"WARNING"}
    assert again._describe().checkpoints.number == first
    gate.touch()
    again.wait(**RUN)
    assert counted(again) == expected()

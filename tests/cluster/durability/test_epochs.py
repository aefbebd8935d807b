"""Epochs of Spark survive the loss of workers and of the scheduler: each committed row is counted once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from distributed import Client, Queue

import dask_elastic as de
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol.handoff_calls import HandoffPlaces
from dask_elastic.spark.staging_connection import call_scheduler, end_source
from dask_elastic.vocab import errors

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from epoch_writer import BATCHES, PARTITIONS, EpochWriter
from oracle import STATE, following, numbered_rows

del sys.path[:2]

ROWS = numbered_rows(12_000, keys=50)
EPOCHS = 6
SIZE = ROWS.num_rows // EPOCHS


def part(epoch):
    """The rows of an epoch."""
    return ROWS.slice(epoch * SIZE, SIZE)


def counting(parallel=2, **options):
    """A topology that tracks count, sum and the order of the rows of each key."""
    topology = de.Topology("epochs")
    rows = topology.source("rows", de.sources.Spark(ROWS.schema, parallel=parallel, **options))
    rows.key_by("k").compute(following(), name="followed", state=STATE, executors=2, shards=16)
    return topology


def expected(epochs=EPOCHS):
    rows = ROWS.slice(0, epochs * SIZE)
    grouped = rows.group_by("k").aggregate([("v", "count"), ("v", "sum"), ("v", "min"), ("v", "max")])
    return {row["k"]: (row["v_count"], row["v_sum"], row["v_min"], row["v_max"]) for row in grouped.to_pylist()}


def counted(job):
    table = job.state("followed").to_arrow().to_pylist()
    return {row["k"]: (row["n"], row["sum"], row["low"], row["high"]) for row in table}


def recorded(folder, number):
    """The parts of a record in the folder of the checkpoints of a job."""
    record, *_ = [each for each in EpochSpool(CheckpointFolder(folder), "rows").records() if each.number == number]
    return record.parts


def kill(client, address):
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)


def test_writer_continues_into_the_next_generation_whatever_worker_is_killed(small_cluster, wait_until, tmp_path):
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(counting(), client, checkpoint=tmp_path, checkpoint_interval="300ms")
        writer = EpochWriter(client, job.name)
        writer.send(0, part(0))
        wait_until(lambda: job.checkpoints()["error"].isna().any(), "a checkpoint is complete")
        # The source's worker is lost between the last task of a micro-batch and its commit.
        first = writer.generation()
        places, parts = writer.staged(1, part(1))
        kill(client, places.places[0])
        writer.commit(1, places, parts)
        wait_until(lambda: writer.generation() > first and job.status == "running", "the job runs again")
        # Then the worker to which a task is sending.
        second = writer.generation()

        def kill_in_the_midst(number):
            if number == BATCHES * (PARTITIONS - 1) + 1:
                places = call_scheduler(writer.target, HandoffPlaces(job.name, None)).places
                kill(client, places[(PARTITIONS - 1) % len(places)])

        writer.send(2, part(2), kill_in_the_midst)
        wait_until(lambda: writer.generation() > second, "the job restarts")
        for epoch in range(3, EPOCHS):
            writer.send(epoch, part(epoch))
        # The restarted job knows what was committed before.
        for epoch in (0, 2, EPOCHS - 1):
            writer.send(epoch, part(epoch))
        with pytest.raises(errors.SourceReset, match="same checkpoint"):
            EpochWriter(client, job.name, query="new").send(0, part(0))
        end_source(writer.target)
        job.wait(240, progress=False)
        assert counted(job) == expected()


def test_committed_epochs_are_read_again_with_and_without_a_checkpoint(client, tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_interval": "1h"}
    job = de.submit(counting(), client, **options)
    for epoch in (0, 1):
        EpochWriter(client, job.name).send(epoch, part(epoch))
    job.stop()
    # Without a checkpoint, the job begins again with the committed epochs.
    job = de.submit(counting(), client, **options)
    for epoch in (1, 2):
        EpochWriter(client, job.name).send(epoch, part(epoch))
    job.checkpoint()
    EpochWriter(client, job.name).send(3, part(3))
    job.stop()
    job = de.resume(tmp_path, client)
    writer = EpochWriter(client, job.name)
    for epoch in (3, 4):
        writer.send(epoch, part(epoch))
    with pytest.raises(errors.SourceReset, match="same checkpoint"):
        EpochWriter(client, job.name, query="new").send(0, part(0))
    # A drained job does not take further epochs; the next run does.
    job.drain(240)
    with pytest.raises(errors.JobEnded):
        writer.send(5, part(5))
    job = de.resume(tmp_path, client)
    EpochWriter(client, job.name).send(5, part(5))
    end_source(writer.target)
    job.wait(240, progress=False)
    assert counted(job) == expected()
    # The end of the input is durable, too.
    again = de.resume(tmp_path, client)
    again.wait(240, progress=False)
    assert counted(again) == expected()


def test_repeated_epoch_with_other_rows_fails_the_job_also_after_a_resumption(client, tmp_path):
    job = de.submit(counting(), client, checkpoint=tmp_path)
    EpochWriter(client, job.name).send(0, part(0))
    job.checkpoint()
    job.stop()
    job = de.resume(tmp_path, client)
    writer = EpochWriter(client, job.name)
    writer.send(0, part(0))
    with pytest.raises(errors.BatchMismatch, match="comes again"):
        writer.send(0, part(1))
    with pytest.raises(errors.JobFailed, match="comes again"):
        job.wait(240, progress=False)


def test_repetition_waits_for_no_room_whatever_was_restarted(client, tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_interval": "1h"}
    topology = counting(parallel=1, rate=1 / 3600, staging="112KiB")
    before = de.submit(topology, client, **options)
    writer = EpochWriter(client, before.name)
    for epoch in range(2):
        writer.send(epoch, part(epoch))
    # Neither its memory nor its queue has room.
    assert writer.committed(1, *writer.staged(1, part(1)), wait=0.0)
    before.stop()
    spooled = tmp_path / "epochs" / "rows" / "rows"
    files = sorted(spooled.iterdir())
    job = de.submit(topology, client, **options)
    writer = EpochWriter(client, job.name)
    for epoch in range(2):
        assert writer.committed(epoch, *writer.staged(epoch, part(epoch)), wait=0.0)
    assert sorted(spooled.iterdir()) == files, "nothing is staged again"
    assert [(each.epochs, each.rows) for each in job._describe().handoffs] == [(2, 2 * SIZE)]
    assert not writer.committed(2, *writer.staged(2, part(2)), wait=0.0)
    with pytest.raises(errors.SourceReset, match="epoch 2 is not in this job"):
        writer.send(3, part(3))
    with pytest.raises(errors.SourceReset, match="same checkpoint"):
        EpochWriter(client, job.name, query="new").send(0, part(0))
    with pytest.raises(errors.BatchMismatch, match=r"epoch 1 was committed .* comes again"):
        writer.send(1, part(2))


def test_resumed_job_that_accepts_resets_takes_the_rows_of_a_new_query(client, tmp_path):
    job = de.submit(counting(on_reset="accept"), client, checkpoint=tmp_path)
    EpochWriter(client, job.name).send(0, part(0))
    job.checkpoint()
    job.stop()
    job = de.resume(tmp_path, client)
    other = EpochWriter(client, job.name, query="new")
    other.send(0, part(1))
    other.send(2, part(2))
    end_source(other.target)
    job.wait(240, progress=False)
    assert sum(count for count, *_ in counted(job).values()) == 3 * SIZE


def test_epochs_that_checkpoints_cover_are_swept(client, wait_until, tmp_path):
    job = de.submit(counting(), client, checkpoint=tmp_path, checkpoint_interval="1h", checkpoint_keep=1)
    writer = EpochWriter(client, job.name)
    for epoch in range(3):
        writer.send(epoch, part(epoch))
    kept = [tmp_path / "epochs" / "rows" / folder for folder in ("rows", "ledger")]
    assert [len([*folder.iterdir()]) for folder in kept] == [3 * PARTITIONS, 3]
    wait_until(lambda: job.state("followed").to_pandas()["n"].sum() == 3 * SIZE, "the rows are counted")
    job.checkpoint()
    wait_until(lambda: [len([*folder.iterdir()]) for folder in kept] == [0, 0], "the epochs are swept")
    writer.send(2, part(2))
    writer.send(3, part(3))
    end_source(writer.target)
    job.wait(240, progress=False)
    assert counted(job) == expected(4)


def copied(entry, client):
    """The rows of an entry of a Dask queue, whatever it is."""
    return pa.ipc.open_stream(entry).read_all() if isinstance(entry, bytes) else entry.fetch("100s", client)


def test_any_client_gets_copies_of_epochs_and_the_job_loses_none(client):
    # The source takes one row and waits.
    job = de.submit(counting(parallel=1, rate=1 / 3600), client)
    writer, queue = EpochWriter(client, job.name), Queue("epochs/rows[0]", client=client)
    large = ROWS.slice(100, 6_000)
    writer.send(0, ROWS.slice(0, 100))
    writer.send(1, large)
    small, handle = queue.get(timeout="100s"), queue.get(timeout="100s")
    assert pa.ipc.open_stream(small).schema.metadata == {b"query": b"q", b"epoch": b"0"}
    assert copied(small, client).equals(ROWS.slice(0, 100).combine_chunks())
    assert isinstance(handle, de.EpochRows)
    assert (handle.source, handle.number, handle.epoch, handle.rows) == ("rows", 2, 1, 6_000)
    assert copied(handle, client).equals(large)
    # Epochs count that were not processed, whatever is on the queue.
    assert queue.qsize() == 0
    places, parts = writer.staged(2, part(2))
    assert not writer.committed(2, places, parts, wait=0.0)
    job.stop()
    with pytest.raises(errors.NodeLost, match="6000 rows of job 'epochs', source 'rows', query q, epoch 1: no copy"):
        handle.fetch("100s", client)


def test_copies_of_spooled_epochs_are_there_until_a_checkpoint_covers_them(client, wait_until, tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_interval": "1h", "checkpoint_keep": 1}
    slow = de.submit(counting(parallel=1, rate=1 / 3600), client, **options)
    writer, queue = EpochWriter(client, slow.name), Queue("epochs/rows[0]", client=client)
    for epoch in range(2):
        writer.send(epoch, part(epoch))
    slow.stop()
    # The next run reads them from the folder, and so does who gets a handle.
    job = de.submit(counting(parallel=1), client, **options)
    wait_until(lambda: job.state("followed").to_pandas()["n"].sum() == 2 * SIZE, "the rows are counted")
    wait_until(lambda: queue.qsize() == 0, "copies of what was read are removed")
    EpochWriter(client, job.name).send(2, part(2))
    entry = de.EpochRows(job.name, "rows", 0, writer.run(), 3, "q", 2, recorded(tmp_path, 3))
    assert copied(entry, client).equals(part(2).combine_chunks())
    wait_until(lambda: job.state("followed").to_pandas()["n"].sum() == 3 * SIZE, "the rows are counted")
    job.checkpoint()
    wait_until(lambda: not [*(tmp_path / "epochs" / "rows" / "rows").iterdir()], "the epochs are swept")
    with pytest.raises(errors.SourceError, match=r"epoch 2: .*the job has read its rows, and keeps no copy"):
        entry.fetch("100s", client)
    with pytest.raises(TimeoutError, match=r"epoch 2: no answer within 1e-09 s"):
        entry.fetch(1e-9, client)

"""The ledger of a source after a restart of its job, and after one of the scheduler."""

from __future__ import annotations

import dataclasses

import pytest

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.manifest_file import from_bytes, to_bytes
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_spec import ComponentSummary
from dask_elastic.runtime.scheduler.epoch_ledger import KEPT_IN_CHECKPOINTS, EpochLedger, LedgerSnapshot
from dask_elastic.runtime.scheduler.spooled_ledger import SpooledLedger, in_checkpoint, snapshots_of, with_ledgers
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, EpochRecord, SpoolFile, StagedPart
from dask_elastic.vocab.errors import BatchMismatch, CheckpointCorrupt, HandoffError, SourceReset

STREAM = EpochOrigin(EpochKind.STREAM, "/checkpoint")
ROWS = ComponentSummary("rows", "source", (), (), 2, 1, pushed=True, epochs=2, spooled=True)


def part(epoch, instance=0, query="q", digest=5):
    file = SpoolFile(f"epochs/rows/rows/{query}-{epoch}-{instance}", 0, "crc32:00000000")
    return StagedPart(AttemptId(query, epoch, instance, "a"), instance, 10, digest, file)


def commit(durable, epoch, instances=(0, 1), query="q", origin=STREAM):
    record = durable.ledger.draft(query, epoch, [part(epoch, each, query) for each in instances], origin)
    durable.spool.append(record)
    durable.ledger.add(record)
    return record


def manifest(durable, number, *reached):
    """A checkpoint in which the instances have read up to some records, as it is read from its file."""
    positions = tuple(
        Pickled.of(SourcePosition(ended=True) if each is None else SourcePosition((each, 0))) for each in reached
    )
    made = Manifest(
        "job", number, 1, 0.0, 1.0, FileRef("topology/1.pickle", 0, "crc32:0"),
        positions={"rows": positions},
    )  # fmt: skip
    made, covered = with_ledgers(made, snapshots_of({"rows": durable}))
    read = from_bytes(to_bytes(made), "manifest", number)
    assert covered == {"rows": covered_by(read)}
    return read


def covered_by(checkpoint):
    return in_checkpoint(checkpoint, "rows")[1]


@pytest.fixture
def load(tmp_path):
    def loaded(found=None, keep=2):
        return SpooledLedger.load(CheckpointFolder(tmp_path), "job", ROWS, found, keep)

    return loaded


def pending(durable, instance, after=0):
    return [record.number for record in durable.ledger.pending(instance, after)]


def test_read_records_stay_until_a_checkpoint_covers_them(load):
    durable = load()
    for epoch in range(4):
        commit(durable, epoch)
    durable.ledger.acknowledge(0, 3)
    durable.ledger.acknowledge(1, 4)
    assert (durable.ledger.backlog(), pending(durable, 0), pending(durable, 0, after=3)) == (1, [1, 2, 3, 4], [4])
    durable.cover(covered_by(manifest(durable, 1, 2, 3)))
    assert (pending(durable, 0), pending(durable, 1)) == ([3, 4], [4])
    durable.ledger.rewind(0, 2)
    assert durable.ledger.backlog() == 2


def test_resumed_ledger_has_the_records_behind_the_checkpoint_and_knows_those_before(load):
    durable = load()
    for epoch in range(3):
        commit(durable, epoch)
    checkpoint = manifest(durable, 1, 1, 2)
    commit(durable, 3)
    durable.cover(covered_by(checkpoint))
    durable.cover(covered_by(checkpoint))
    durable.sweep()
    assert [record.number for record in durable.spool.records()] == [2, 3, 4]
    resumed = load(checkpoint)
    assert (pending(resumed, 0), pending(resumed, 1)) == ([2, 3, 4], [3, 4])
    assert (resumed.ledger.epochs, resumed.ledger.rows) == (4, 80)
    for epoch in range(4):
        assert resumed.ledger.known("q", epoch, [part(epoch, 0), part(epoch, 1)], STREAM)
        with pytest.raises(BatchMismatch):
            resumed.ledger.known("q", epoch, [part(epoch, 0, digest=6), part(epoch, 1)], STREAM)
    with pytest.raises(SourceReset, match="epoch 4 is"):
        resumed.ledger.known("q", 5, [part(5)], STREAM)
    with pytest.raises(SourceReset, match="same checkpoint"):
        resumed.ledger.known("other", 0, [part(0, query="other")], STREAM)
    assert commit(resumed, 4).number == 5


def test_ledger_without_a_checkpoint_has_all_records_and_their_origins(load):
    durable = load()
    commit(durable, 0)
    commit(durable, 0, query="batch", origin=EpochOrigin(EpochKind.BATCH))
    again = load()
    assert pending(again, 0) == [1, 2]
    with pytest.raises(SourceReset, match="epoch 1 is"):
        again.ledger.known("q", 2, [part(2)], STREAM)
    assert again.ledger.known("batch", 0, [part(0, each, "batch") for each in (0, 1)])


def test_sweep_waits_for_the_oldest_checkpoint_that_is_kept(load):
    durable = load()
    for epoch in range(3):
        commit(durable, epoch)
    durable.cover(covered_by(manifest(durable, 1, 1, 1)))
    durable.sweep()
    assert len(durable.spool.records()) == 3
    durable.cover(covered_by(manifest(durable, 2, None, None)))
    durable.sweep()
    assert [record.number for record in durable.spool.records()] == [2, 3]


def test_lost_records_are_found(load, tmp_path):
    durable = load()
    for epoch in range(3):
        commit(durable, epoch)
    checkpoint = manifest(durable, 1, 0, 0)
    commit(durable, 3)
    commit(durable, 4)
    ledger = tmp_path / "epochs" / "rows" / "ledger"
    (ledger / "0000000004.json").unlink()
    with pytest.raises(CheckpointCorrupt, match=r"0000000004\.json"):
        load(checkpoint)
    for number in (1, 2, 3):
        (ledger / f"000000000{number}.json").unlink()
    with pytest.raises(CheckpointCorrupt, match="record 1"):
        load(checkpoint)


def test_records_that_were_swept_before_an_older_checkpoint_is_resumed_are_missed(load):
    durable = load()
    for epoch in range(3):
        commit(durable, epoch)
    older = manifest(durable, 1, 1, 3)
    for _ in range(2):
        durable.cover(covered_by(manifest(durable, 2, 2, 3)))
    durable.sweep()
    assert [record.number for record in durable.spool.records()] == [3]
    with pytest.raises(CheckpointCorrupt, match="record 2"):
        load(older)


def test_checkpoints_remember_a_bounded_number_of_epochs():
    ledger = EpochLedger(1, durable=True)
    count = KEPT_IN_CHECKPOINTS + 20
    for epoch in range(count):
        ledger.add(EpochRecord(epoch + 1, "q", epoch, 10, 5, (part(epoch),), STREAM))
    snapshot = ledger.snapshot()
    assert len(snapshot.records) == KEPT_IN_CHECKPOINTS
    again = EpochLedger(1, durable=True)
    again.restore(snapshot, [])
    assert again.known("q", count - 1, [part(count - 1)], STREAM)
    with pytest.raises(HandoffError, match="forgotten"):
        again.known("q", 3, [part(3)], STREAM)
    # Without the records on storage, there is nothing to read.
    assert again.snapshot() == dataclasses.replace(snapshot, waiting=((),))


def test_ended_source_stays_ended(load, tmp_path):
    assert not load().ledger.closed
    EpochSpool(CheckpointFolder(tmp_path), "rows").end()
    assert load().ledger.closed
    assert LedgerSnapshot().count == 0


def test_checkpoint_has_the_ledger_of_the_moment_at_which_it_was_taken(load):
    durable = load()
    commit(durable, 0)
    commit(durable, 1)
    snapshots = snapshots_of({"rows": durable})
    commit(durable, 2)
    durable.ledger.acknowledge(0, 3)
    durable.ledger.cover([2, None])
    made = Manifest("job", 1, 1, 0.0, 1.0, FileRef("topology/1.pickle", 0, "crc32:0"))
    snapshot, _ = in_checkpoint(with_ledgers(made, snapshots)[0], "rows")
    assert (snapshot.count, snapshot.rows, snapshot.waiting) == (2, 40, ((1, 2), (1, 2)))
    assert [(record.epoch, record.parts) for record in sorted(snapshot.records, key=lambda each: each.number)] == [
        (0, ()), (1, ()),
    ]  # fmt: skip
    assert snapshot.positions.newest == {"q": 1}

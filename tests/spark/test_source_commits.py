"""Commits of epochs whose record storage writes late, and those of a scheduler that has lost its job."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol.handoff_calls import CommitEpoch, NextEpochs
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
from dask_elastic.runtime.scheduler.queue_copies import EpochCopies
from dask_elastic.runtime.scheduler.source_commits import SourceCommits
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, StagedPart
from dask_elastic.vocab.errors import CheckpointError, CheckpointSuperseded

STREAM = EpochOrigin(EpochKind.STREAM, "/checkpoint")


class Continued:
    """Whether another scheduler has continued the job."""

    def __init__(self):
        self.is_true = False

    def check(self):
        if self.is_true:
            raise CheckpointSuperseded("another scheduler has continued the job")


@pytest.fixture
def continued():
    return Continued()


@pytest.fixture
def spool(tmp_path):
    return EpochSpool(CheckpointFolder(tmp_path), "rows")


@pytest.fixture
def commits(spool, continued):
    return SourceCommits("rows", 1, EpochLedger(1, durable=True), spool, 4, [], continued.check)


def call(spool, epoch, name):
    """The commit of one attempt of an epoch, whose rows are on storage."""
    attempt = AttemptId("q", epoch, 0, name)
    part = StagedPart(attempt, 0, 10, 5, spool.write_rows(attempt, b"schema", [b"rows"]))
    return CommitEpoch("job", 1, "run", "rows", "q", epoch, STREAM, (part,), 1.0)


def commit(commits, given):
    async def run():
        adopted = await commits.adopt()
        if adopted is not None and commits.ledger.known(given.query, given.epoch, given.parts, given.origin):
            return adopted
        return await commits.commit(given)

    return asyncio.run(run())


def fail_late(commits, spool, given, monkeypatch):
    """Have the record of an epoch appear after its commit has failed."""
    late = []
    with monkeypatch.context() as patched:

        def append(record):
            late.append(record)
            raise CheckpointError("the storage has not answered within 30 s")

        patched.setattr(spool, "append", append)
        with pytest.raises(CheckpointError, match="has not answered"):
            commit(commits, given)
    [record] = late
    spool.append(record)
    return record


def test_record_that_appears_late_is_the_commit(commits, spool, monkeypatch):
    record = fail_late(commits, spool, call(spool, 0, "a"), monkeypatch)
    assert commit(commits, call(spool, 0, "b")) == record
    assert commit(commits, call(spool, 1, "a")).number == 2
    assert spool.records() == commits.ledger.pending(0)


def test_record_that_appears_late_without_its_rows_is_withdrawn(commits, spool, monkeypatch):
    record = fail_late(commits, spool, call(spool, 0, "a"), monkeypatch)
    spool.drop_rows([record.parts[0].file.path])
    again = commit(commits, call(spool, 0, "b"))
    assert (again.number, again.parts[0].attempt.attempt) == (1, "b")
    assert spool.records() == commits.ledger.pending(0) == [again]


def test_record_of_a_scheduler_whose_job_was_continued_is_no_commit(commits, spool, continued, monkeypatch):
    commit(commits, call(spool, 0, "a"))
    continued.is_true = True
    with pytest.raises(CheckpointSuperseded):
        commit(commits, call(spool, 1, "a"))
    # The other scheduler decides what becomes of the record.
    with pytest.raises(CheckpointSuperseded):
        commit(commits, call(spool, 1, "b"))
    assert [record.epoch for record in commits.ledger.pending(0)] == [0]


def test_record_that_appears_while_another_scheduler_continues_the_job_is_no_commit(
    commits, spool, continued, monkeypatch
):
    """The other scheduler may have listed the records before, and delete the rows."""
    late = fail_late(commits, spool, call(spool, 0, "a"), monkeypatch)
    spool.withdraw(late.number)
    found = spool.found

    def appears(number):
        continued.is_true = True
        spool.append(late)
        return found(number)

    monkeypatch.setattr(spool, "found", appears)
    with pytest.raises(CheckpointSuperseded):
        commit(commits, call(spool, 0, "b"))
    assert commits.ledger.epochs == 0
    assert spool.contains(late), "the other scheduler decides what becomes of it"


def test_record_that_a_lost_scheduler_has_left_without_its_rows_is_withdrawn(commits, spool):
    """It was written after the records were listed from which this scheduler continues."""
    given = call(spool, 0, "a")
    left = EpochLedger(1, durable=True).draft(given.query, given.epoch, given.parts, given.origin)
    spool.append(left)
    spool.drop_uncommitted([])
    assert asyncio.run(commits.adopt()) is None
    assert spool.records() == []
    assert commit(commits, call(spool, 0, "b")).number == 1


def test_record_that_is_not_there_leaves_room_for_another(commits, spool, monkeypatch):
    late = fail_late(commits, spool, call(spool, 0, "a"), monkeypatch)
    spool.withdraw(late.number)
    assert spool.found(late.number) is None
    assert commit(commits, call(spool, 0, "b")).number == 1


def test_instance_of_a_drained_job_reads_the_epoch_whose_record_is_being_written(spool, monkeypatch):
    """Its commit succeeds, and Spark never sends it again."""
    ledger = EpochLedger(1, durable=True)
    copies = EpochCopies(asyncio.Queue(), ledger, "job", "rows", "run", 0)
    spec = SimpleNamespace(
        generation=1, run="run", homes={"rows": (0,)}, summaries=[SimpleNamespace(name="rows", epochs=2)]
    )
    record = SimpleNamespace(
        name="job", live=True, error=None, status=Status.RUNNING, spec=spec, generation_id=("job", 1), nodes=["worker"],
        checkpoints=None, draining=False, runs=lambda generation: True,
    )  # fmt: skip
    jobs = SimpleNamespace(get=lambda name: record, record=lambda name: record)
    epochs = EpochCommits(SimpleNamespace(), jobs, SimpleNamespace(one=lambda address, call: asyncio.sleep(0)), None)
    epochs._commits["job", "rows"] = SourceCommits("rows", 1, ledger, spool, 2, [copies])
    begun, written, append = asyncio.Event(), threading.Event(), spool.append

    async def drain():
        loop = asyncio.get_running_loop()

        def append_late(found):
            loop.call_soon_threadsafe(begun.set)
            assert written.wait(20)
            append(found)

        monkeypatch.setattr(spool, "append", append_late)
        committing = asyncio.ensure_future(epochs.commit_epoch(call(spool, 0, "a")))
        await begun.wait()
        record.draining = True
        epochs.close_all(record)
        # The last look of the instance, which ends if there is nothing more.
        reading = asyncio.ensure_future(epochs.next_epochs(NextEpochs("job", 1, "rows", 0, 0, 0.0)))
        for _ in range(10):
            await asyncio.sleep(0)
        written.set()
        assert await committing
        return await reading

    assert [epoch.number for epoch in asyncio.run(drain()).epochs] == [1]

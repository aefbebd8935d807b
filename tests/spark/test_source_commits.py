"""Commits of epochs whose record storage writes late, and those of a scheduler that has lost its job."""

from __future__ import annotations

import asyncio

import pytest

from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol.handoff_calls import CommitEpoch
from dask_elastic.runtime.scheduler.epoch_ledger import EpochLedger
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


def test_record_that_is_not_there_leaves_room_for_another(commits, spool, monkeypatch):
    late = fail_late(commits, spool, call(spool, 0, "a"), monkeypatch)
    spool.withdraw(late.number)
    assert spool.found(late.number) is None
    assert commit(commits, call(spool, 0, "b")).number == 1

"""The scheduler's part of a stop with a savepoint, when the job restarts or ends between its steps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from checkpointed import Job

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_calls import TakeSavepoint
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.savepoints import Savepoints
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.errors import CheckpointError, JobEnded, NodeLost
from dask_elastic.vocab.identity import ExecutorId

SINK = ExecutorId("out", 0)


class Record:
    """A job on the scheduler, as far as savepoints see it."""

    name = "delays"

    def __init__(self, folder, job):
        self.spec = SimpleNamespace(generation=1, summaries=())
        self.status = Status.RUNNING
        self.checkpoints = JobCheckpoints(folder.url, job.topology)

    @property
    def live(self):
        return self.status is Status.RUNNING

    @property
    def generation_id(self):
        return "delays", self.spec.generation

    def runs(self, generation):
        return self.spec.generation == generation

    async def ended(self, timeout=None):
        while self.live:
            await asyncio.sleep(0)

    def restart(self):
        self.spec = SimpleNamespace(generation=self.spec.generation + 1, summaries=())


class Scheduler:
    """Takes real checkpoints of a stand-in for a job; `events` are called before each of them is committed."""

    def __init__(self, path):
        self.folder = CheckpointFolder(path / "own")
        self.job = Job(self.folder)
        self.record = Record(self.folder, self.job)
        self.events = []
        self.holds = []
        self.told = []
        self.halted = []
        self.savepoints = Savepoints({"delays": self.record}, self, self, self.stop, self.settled)
        self.savepoints.jobs = SimpleNamespace(record=lambda name: self.record)

    async def take(self, record):
        state = record.checkpoints
        assert not state.held
        self.job.put({"N1": state.last})
        number = state.next_number()
        self.halted.append(state.stopping)
        assert self.job.checkpoint(number).number == number
        state.begin_commits(number, [SINK])
        event = self.events.pop(0) if self.events else None
        if event is not None:
            event()
        asyncio.get_running_loop().call_soon(state.note_commit, number, SINK)
        return CheckpointDescription(number, 0.0, 0.0)

    async def tell(self, record, call):
        self.told.append(call)

    async def all(self, record, call):
        assert call == part_calls.HoldSources("delays", record.spec.generation, record.checkpoints.last)
        assert record.checkpoints.held
        event = self.holds.pop(0) if self.holds else None
        if event is not None:
            event()

    async def settled(self, job):
        assert self.record.checkpoints.held

    async def stop(self, record):
        assert record.checkpoints.committed == record.checkpoints.last
        record.status = Status.STOPPED

    def call(self, path, stop=True):
        return asyncio.run(self.savepoints.take(TakeSavepoint("delays", str(path), stop)))


@pytest.fixture
def scheduler(tmp_path):
    return Scheduler(tmp_path)


def give_up():
    raise CheckpointError("the job was restarted")


def test_job_that_restarts_before_the_copy_takes_another_checkpoint(scheduler, tmp_path):
    def restart_and_give_up():
        scheduler.record.restart()
        give_up()

    scheduler.events = [restart_and_give_up, scheduler.record.restart]
    assert scheduler.call(tmp_path / "savepoint").number == 3
    assert scheduler.record.status is Status.STOPPED
    assert scheduler.halted == [True, True, True]
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).load(verify=True).number == 3


def test_sources_continue_if_the_checkpoint_is_given_up(scheduler, tmp_path):
    scheduler.events = [give_up]
    with pytest.raises(CheckpointError, match="was restarted"):
        scheduler.call(tmp_path / "savepoint")
    assert scheduler.record.live
    assert not scheduler.record.checkpoints.stopping
    assert not scheduler.record.checkpoints.held
    assert scheduler.told == [part_calls.ContinueSources("delays", 1, 1)]
    assert scheduler.record.checkpoints.kept_from is None


def test_job_that_restarts_during_the_copy_continues_and_its_savepoint_is_complete(scheduler, tmp_path, monkeypatch):
    copy = scheduler.savepoints._copy

    async def copy_and_restart(*arguments):
        await copy(*arguments)
        scheduler.record.restart()

    monkeypatch.setattr(scheduler.savepoints, "_copy", copy_and_restart)
    with pytest.raises(CheckpointError, match="was restarted while its savepoint was copied, and continues behind it"):
        scheduler.call(tmp_path / "savepoint")
    assert scheduler.record.live
    assert not scheduler.record.checkpoints.held
    assert scheduler.told == [part_calls.ContinueSources("delays", 2, 1)]
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).numbers() == [1]


def test_job_that_restarts_while_its_sources_are_held_takes_another_checkpoint(scheduler, tmp_path):
    def lose():
        scheduler.record.restart()
        raise NodeLost("worker a has left the cluster")

    scheduler.holds = [lose]
    assert scheduler.call(tmp_path / "savepoint").number == 2
    assert scheduler.record.status is Status.STOPPED
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).numbers() == [2]


def test_job_continues_if_its_sources_cannot_be_held(scheduler, tmp_path):
    def fail():
        raise Relayed(dump_error(CheckpointError("the disk is full")))

    scheduler.holds = [fail]
    with pytest.raises(CheckpointError, match=r"continues: sources could not stop accepting rows.*the disk is full"):
        scheduler.call(tmp_path / "savepoint")
    assert scheduler.told == [part_calls.ContinueSources("delays", 1, 1)]
    assert not scheduler.record.checkpoints.held
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).numbers() == []


def test_job_that_finishes_meanwhile_has_a_savepoint_and_one_that_fails_has_none(scheduler, tmp_path):
    def ends(status):
        def end():
            scheduler.record.status = status

        return end

    scheduler.events = [ends(Status.FINISHED)]
    assert scheduler.call(tmp_path / "first").number == 1
    scheduler.record.status = Status.RUNNING
    scheduler.events = [ends(Status.FAILED)]
    with pytest.raises(JobEnded, match="has failed: its savepoint was not taken"):
        scheduler.call(tmp_path / "second", stop=False)
    assert Catalog(CheckpointFolder(tmp_path / "second")).numbers() == []


def test_second_stop_with_a_savepoint_is_refused(scheduler, tmp_path):
    scheduler.record.checkpoints.stopping = True
    with pytest.raises(CheckpointError, match="is being stopped with another savepoint"):
        scheduler.call(tmp_path / "savepoint")
    assert scheduler.record.checkpoints.stopping
    assert scheduler.call(tmp_path / "other", stop=False).number == 1

"""Savepoints of jobs whose sources accept rows before they process them: none is lost, none is taken twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.checkpoint.spool.entry import Entry
from dask_elastic.checkpoint.spool.log import SpoolLog, path_of
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.handoff_calls import CommitEpoch
from dask_elastic.runtime.protocol.job_calls import Submit, TakeSavepoint
from dask_elastic.runtime.protocol.job_spec import ComponentSummary
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.checkpoint_folders import open_checkpoints
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.queue_copies import EpochCopies
from dask_elastic.runtime.scheduler.savepoints import Savepoints
from dask_elastic.runtime.scheduler.source_commits import SourceCommits
from dask_elastic.runtime.scheduler.spooled_ledger import SpooledLedger, snapshots_of, with_ledgers
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin, StagedPart
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError, SourceReset

PUSH = ComponentSummary("a/b", "source", (), (), 1, 1, pushed=True, spooled=True)
SPARK = ComponentSummary("spark", "source", (), (), 1, 1, pushed=True, epochs=2, spooled=True)
STREAM = EpochOrigin(EpochKind.STREAM, "/checkpoint")


class Record:
    """A job on the scheduler, as far as savepoints see it, whose sources have accepted more than they have read."""

    name = "job"
    live = True
    status = Status.RUNNING
    generation_id = ("job", 1)

    def __init__(self, path, *summaries):
        self.folder = CheckpointFolder(path)
        generation = next_generation(self.folder)
        options = SimpleNamespace(checkpoint_keep=1)
        self.spec = SimpleNamespace(generation=generation, run="first", summaries=summaries, options=options)
        topology = self.folder.write("topology/000001.pickle", [b"pickled"])
        self.checkpoints = JobCheckpoints(self.folder.url, topology)
        self.positions = {}
        if SPARK in summaries:
            self.checkpoints.ledgers = {"spark": SpooledLedger.load(self.folder, "job", SPARK, None, 1)}

    def runs(self, generation):
        return True

    async def ended(self, timeout=None):
        await asyncio.sleep(0)

    def publish(self):
        """Publish the next checkpoint, and return its number."""
        state = self.checkpoints
        number = state.next_number()
        manifest = Manifest(
            "job", number, 1, 0.0, 1.0, state.topology,
            positions={
                name: tuple(map(Pickled.of, found if isinstance(found, list) else [found]))
                for name, found in self.positions.items()
            },
        )  # fmt: skip
        manifest, covered = with_ledgers(manifest, snapshots_of(state.ledgers))
        Catalog(self.folder).publish(manifest)
        state.begin_commits(number, [])
        for name, ledger in state.ledgers.items():
            ledger.cover(covered[name])
        return number


class Scheduler:
    """Takes savepoints; `held` is called when sources are told to accept nothing more."""

    def __init__(self, record):
        self.record = record
        self.held = lambda: None
        jobs = SimpleNamespace(record=lambda name: record)
        self.savepoints = Savepoints(jobs, self, self, self.stop, self.settled)

    async def take(self, record):
        return CheckpointDescription(record.publish(), 0.0, 0.0)

    async def all(self, record, call):
        assert isinstance(call, part_calls.HoldSources)
        self.held()

    async def tell(self, record, call):
        assert isinstance(call, part_calls.ContinueSources)

    async def settled(self, job):
        pass

    async def stop(self, record):
        assert record.checkpoints.held

    def savepoint(self, path, stop):
        return asyncio.run(self.savepoints.take(TakeSavepoint("job", str(path), stop))).number


def test_savepoint_opens_its_folders_away_from_the_event_loop(tmp_path, monkeypatch):
    record = Record(tmp_path / "job", SPARK)
    opened, real = [], CheckpointFolder._open

    def noted(folder):
        opened.append((folder.url, asyncio._get_running_loop()))
        real(folder)

    monkeypatch.setattr(CheckpointFolder, "_open", noted)
    Scheduler(record).savepoint(tmp_path / "saved", False)
    assert {url for url, _ in opened} == {record.folder.url, str(tmp_path / "saved")}
    assert {loop for _, loop in opened} == {None}


def entry(number):
    return Entry(number, "client", number, pa.record_batch({"n": pa.array([number], pa.int64())}), None, 1.0)


def spool(record, generation=1, instance=0, **options):
    """The spool of the pushed source of a job, as a generation of it appends to it."""
    return SpoolLog(record.folder, path_of("first", "a/b", instance), generation, **options)


def resumed(savepoint, own, *summaries, run="second"):
    """Continue from a savepoint: what the scheduler opens, and the position of each source."""
    number = Catalog(CheckpointFolder(savepoint)).load().number
    options = job_options({"checkpoint": str(own)})
    call = Submit("job", "1", summaries, options, {}, b"", number, run, str(savepoint))
    opened = open_checkpoints(str(own), call, above=0)
    manifest = Catalog(CheckpointFolder(own)).load(number, verify=True)
    return opened, {name: found[0].load("position") for name, found in manifest.positions.items()}


def replayed(own, opened, after, run="second", instance=0):
    log = SpoolLog(CheckpointFolder(own), path_of(run, "a/b", instance), opened.generation)
    return [each.number for each in log.entries(after)], log.senders.last("client")


@pytest.mark.parametrize("read", [0, 5, 9])
def test_stop_keeps_what_was_accepted_until_the_sources_are_held(tmp_path, read):
    record = Record(tmp_path / "job", PUSH)
    log = spool(record, segment_bytes=400)
    for number in range(1, 9):
        log.append([entry(number)])
    record.positions = {"a/b": SourcePosition(read, skip=0)}
    scheduler = Scheduler(record)

    def accept_and_restart():
        # This row is acknowledged after the barrier.
        log.append([entry(9)])
        # The next generation may begin before the copy does, and accepts more: the call raises then.
        spool(record, 2).append([entry(10)])
        record.spec.generation = 2

    scheduler.held = accept_and_restart
    scheduler.savepoint(tmp_path / "savepoint", stop=True)
    opened, positions = resumed(tmp_path / "savepoint", tmp_path / "own", PUSH)
    assert positions == {"a/b": SourcePosition(read)}
    assert replayed(tmp_path / "own", opened, read) == ([*range(read + 1, 10)], 9)
    copied = CheckpointFolder(tmp_path / "savepoint").sizes(path_of("first", "a/b", 0))
    # Segments that are read completely stay behind.
    assert len(copied) == max(1, 9 - read)
    # Another job continues from the same savepoint; the first one, from its own folder.
    other, _ = resumed(tmp_path / "savepoint", tmp_path / "other", PUSH, run="third")
    assert replayed(tmp_path / "other", other, read, run="third") == ([*range(read + 1, 10)], 9)
    assert [each.number for each in spool(record, 3).entries(read)] == [*range(read + 1, 11)]


def test_job_from_a_savepoint_of_one_that_goes_on_begins_with_an_empty_spool(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    spool(record).append([entry(number) for number in range(1, 9)])
    record.positions = {"a/b": SourcePosition(5, skip=3, event_time=7)}
    Scheduler(record).savepoint(tmp_path / "savepoint", stop=False)
    opened, positions = resumed(tmp_path / "savepoint", tmp_path / "own", PUSH)
    assert positions == {"a/b": SourcePosition(event_time=7)}
    assert replayed(tmp_path / "own", opened, 0) == ([], 0)


def test_source_that_has_ended_needs_no_spool(tmp_path):
    for stop in (True, False):
        record = Record(tmp_path / f"job-{stop}", PUSH)
        record.positions = {"a/b": SourcePosition(ended=True)}
        Scheduler(record).savepoint(tmp_path / f"savepoint-{stop}", stop)
        _, positions = resumed(tmp_path / f"savepoint-{stop}", tmp_path / f"own-{stop}", PUSH)
        assert positions == record.positions


def test_stop_keeps_what_an_instance_has_accepted_beside_one_that_has_ended(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    spool(record).append([entry(number) for number in range(1, 4)])
    spool(record, instance=1).append([entry(number) for number in range(1, 9)])
    record.positions = {"a/b": [SourcePosition(ended=True), SourcePosition(5)]}
    Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    opened, _ = resumed(tmp_path / "savepoint", tmp_path / "own", PUSH)
    assert replayed(tmp_path / "own", opened, 5, instance=1) == ([6, 7, 8], 8)
    assert CheckpointFolder(tmp_path / "own").sizes(path_of("second", "a/b", 0)) == {}


def test_segment_with_a_torn_header_is_copied_with_the_one_before_it(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    spool(record).append([entry(1), entry(2)])
    folder = tmp_path / "job" / path_of("first", "a/b", 0)
    (segment,) = folder.iterdir()
    (folder / segment.name.replace("00000001-0000000000000001", "00000001-0000000000000003")).write_bytes(b"torn")
    record.positions = {"a/b": SourcePosition(2)}
    Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    opened, _ = resumed(tmp_path / "savepoint", tmp_path / "own", PUSH)
    assert replayed(tmp_path / "own", opened, 2) == ([], 2)


def test_job_goes_on_if_accepted_rows_are_lost(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    record.positions = {"a/b": SourcePosition(2)}
    with pytest.raises(CheckpointCorrupt, match="the entries behind 2"):
        Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    assert not record.checkpoints.held
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).numbers() == []


def test_interrupted_savepoint_is_replaced_by_the_next_one(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    log = spool(record)
    log.append([entry(1)])
    record.positions = {"a/b": SourcePosition()}
    place = path_of("first", "a/b", 0)
    (name,) = record.folder.sizes(place)
    # A scheduler that was killed has left the segment as it was then.
    CheckpointFolder(tmp_path / "savepoint").write(f"{place}/{name}", [record.folder.read_unchecked(f"{place}/{name}")])
    log.append([entry(2)])
    Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    opened, _ = resumed(tmp_path / "savepoint", tmp_path / "own", PUSH)
    assert replayed(tmp_path / "own", opened, 0) == ([1, 2], 2)


def test_rows_of_a_dropped_source_are_not_copied(tmp_path):
    record = Record(tmp_path / "job", PUSH, SPARK)
    spool(record).append([entry(1)])
    commit(record, 0)
    record.positions = {"a/b": SourcePosition(), "spark": SourcePosition()}
    Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    resumed(tmp_path / "savepoint", tmp_path / "own")
    assert not (tmp_path / "own" / "spool").exists()
    assert not (tmp_path / "own" / "epochs").exists()


# Spark


def staged(record, epoch, name="a"):
    attempt = AttemptId("q", epoch, 0, name)
    rows = pa.record_batch({"n": pa.array([epoch], pa.int64())})
    writer = EpochSpool(record.folder, "spark")
    file = writer.write_rows(attempt, rows.schema.serialize().to_pybytes(), [rows.serialize().to_pybytes()])
    return StagedPart(attempt, 0, 1, 5, file)


def commit(record, epoch):
    durable = record.checkpoints.ledgers["spark"]
    found = durable.ledger.draft("q", epoch, [staged(record, epoch)], STREAM)
    durable.spool.append(found)
    durable.ledger.add(found)


def pending(opened):
    """The rows of the epochs that a job which continues reads."""
    durable = opened.checkpoints.ledgers["spark"]
    parts = [part for found in durable.ledger.pending(0) for part in found.parts]
    return [batch["n"].to_pylist()[0] for part in parts for batch in durable.spool.read_rows(part.file)]


@pytest.mark.parametrize("stop", [True, False])
def test_savepoint_has_the_epochs_of_its_ledger_and_that_of_a_stop_also_later_ones(tmp_path, stop):
    record = Record(tmp_path / "job", SPARK)
    for epoch in range(4):
        commit(record, epoch)
    record.positions = {"spark": SourcePosition((2, 0))}
    scheduler = Scheduler(record)
    take = scheduler.take

    async def take_and_commit(record):
        taken = await take(record)
        commit(record, 4)
        record.checkpoints.ledgers["spark"].spool.end()
        return taken

    scheduler.take = take_and_commit
    scheduler.savepoints.checkpoints = scheduler
    scheduler.savepoint(tmp_path / "savepoint", stop)
    opened, positions = resumed(tmp_path / "savepoint", tmp_path / "own", SPARK)
    assert positions == record.positions
    # Epochs 0 and 1 are records 1 and 2, which were read before the barrier.
    assert pending(opened) == ([2, 3, 4] if stop else [2, 3])
    ledger = opened.checkpoints.ledgers["spark"].ledger
    assert ledger.closed == stop
    assert ledger.known("q", 3, [staged(SimpleNamespace(folder=CheckpointFolder(tmp_path / "x")), 3)], STREAM)
    part = staged(SimpleNamespace(folder=CheckpointFolder(tmp_path / "x")), 5)
    if not stop:
        with pytest.raises(SourceReset, match="epoch 4 is"):
            ledger.known("q", 5, [part], STREAM)
    assert not (tmp_path / "savepoint" / "epochs" / "spark" / "ledger" / "0000000002.json").exists()


@pytest.fixture
def commits(tmp_path):
    """The commits of a job with a source for Spark, whose workers answer nothing, and the job."""
    record = Record(tmp_path / "job", SPARK)
    record.error, record.nodes = None, ("worker",)
    record.spec.homes = {"spark": (0,)}
    durable = record.checkpoints.ledgers["spark"]
    jobs = SimpleNamespace(record=lambda name: record)
    calls = SimpleNamespace(one=lambda address, call: asyncio.sleep(0))
    made = EpochCommits(SimpleNamespace(), jobs, calls, None)
    copies = EpochCopies(asyncio.Queue(), durable.ledger, "job", "spark", "first", 0)
    made._commits["job", "spark"] = SourceCommits("spark", 1, durable.ledger, durable.spool, 2, [copies])
    return made, record


def test_epochs_are_not_committed_while_a_savepoint_is_copied(commits):
    commits, record = commits
    call = CommitEpoch("job", 1, "first", "spark", "q", 0, STREAM, (staged(record, 0),), 0.0)
    record.checkpoints.held = True
    assert not asyncio.run(commits.commit_epoch(call))
    durable = record.checkpoints.ledgers["spark"]
    assert durable.spool.records() == []
    record.checkpoints.held = False
    assert asyncio.run(commits.commit_epoch(call))
    record.checkpoints.held = True
    # It is committed: the writer needs not wait to learn this.
    assert asyncio.run(commits.commit_epoch(call))
    assert len(durable.spool.records()) == 1


@pytest.mark.parametrize("ends", [False, True])
def test_record_that_appears_while_a_savepoint_is_copied_is_no_commit_yet(commits, ends, monkeypatch):
    """The savepoint may lack it: the records were listed before."""
    commits, record = commits
    record.status = Status.RUNNING
    durable = record.checkpoints.ledgers["spark"]
    call = CommitEpoch("job", 1, "first", "spark", "q", 0, STREAM, (staged(record, 0),), 0.0)
    late = []

    def append(found):
        late.append(found)
        raise CheckpointError("the storage has not answered within 30 s")

    async def commit_again():
        with monkeypatch.context() as patched:
            patched.setattr(durable.spool, "append", append)
            with pytest.raises(CheckpointError, match="has not answered"):
                await commits.commit_epoch(call)
        record.checkpoints.held = True
        [found] = late
        durable.spool.append(found)
        ending = asyncio.ensure_future(commits.end(record, "spark")) if ends else None
        for _ in range(10):
            assert not await commits.commit_epoch(call)
        assert durable.ledger.epochs == 0
        record.checkpoints.held = False
        if ending is not None:
            await ending
        assert await commits.commit_epoch(call)
        assert durable.ledger.epochs == 1

    asyncio.run(commit_again())


def test_commit_that_waits_for_room_while_a_stop_fails_looks_for_the_late_record(commits, monkeypatch):
    """Otherwise it writes a record of the same number, which storage refuses as that of another job."""
    commits, record = commits
    record.status = Status.RUNNING
    durable = record.checkpoints.ledgers["spark"]
    first, again = (
        CommitEpoch("job", 1, "first", "spark", "q", 0, STREAM, (staged(record, 0, name),), 0.0) for name in "ab"
    )
    late = durable.ledger.draft(first.query, first.epoch, first.parts, first.origin)

    async def stop_fails(parts, wait):
        record.checkpoints.held = False
        return True

    async def commit_again():
        record.checkpoints.held = True
        durable.spool.append(late)
        with monkeypatch.context() as patched:
            patched.setattr(commits._commits["job", "spark"], "has_room", stop_fails)
            assert not await commits.commit_epoch(again)
        assert await commits.commit_epoch(again)

    asyncio.run(commit_again())
    assert durable.spool.records() == durable.ledger.pending(0) == [late]


def test_end_of_a_source_waits_while_a_savepoint_is_copied(commits):
    commits, record = commits
    record.status = Status.RUNNING
    durable = record.checkpoints.ledgers["spark"]

    async def end_and_release():
        record.checkpoints.held = True
        ending = asyncio.ensure_future(commits.end(record, "spark"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ending.done()
        assert not durable.ledger.closed
        assert not durable.spool.ended
        record.checkpoints.held = False
        await ending

    asyncio.run(end_and_release())
    assert durable.spool.ended
    assert durable.ledger.closed


def test_no_checkpoint_is_taken_while_a_savepoint_is_copied(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    record.spec.options.checkpoint_interval = 0.0
    checkpoints, state = Checkpoints(None, None), record.checkpoints
    looks, held = 0, []

    async def ended():
        nonlocal looks
        looks += 1
        state.held = looks < 5
        record.live = looks < 10

    async def take(record, state, generation):
        held.append(state.held)

    record.ended, checkpoints._take = ended, take
    state.held = True
    asyncio.run(checkpoints.run(record))
    assert held
    assert not any(held)


def test_sweep_keeps_the_epochs_of_a_checkpoint_that_is_being_copied(tmp_path):
    record = Record(tmp_path / "job", SPARK)
    for epoch in range(3):
        commit(record, epoch)
    record.positions = {"spark": SourcePosition((1, 0))}
    state, durable = record.checkpoints, record.checkpoints.ledgers["spark"]
    checkpoints = Checkpoints(None, None)
    with state.keeping(state.last + 1):
        number = record.publish()
        record.positions = {"spark": SourcePosition((3, 0))}
        record.publish()
        asyncio.run(checkpoints._sweep(record, state))
        manifest = Catalog(record.folder).load(number)
        assert len(durable.accepted(manifest, "spark", later=False)) == 4
    asyncio.run(checkpoints._sweep(record, state))
    assert durable.spool.records() == []


def test_damaged_epoch_is_not_copied(tmp_path):
    record = Record(tmp_path / "job", SPARK)
    commit(record, 0)
    record.positions = {"spark": SourcePosition()}
    (file,) = (tmp_path / "job" / "epochs" / "spark" / "rows").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError):
        Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    assert Catalog(CheckpointFolder(tmp_path / "savepoint")).numbers() == []
    assert not any((tmp_path / "savepoint" / "topology").iterdir())


# generations


def test_folder_in_which_a_resumption_from_another_savepoint_failed_can_be_used(tmp_path, monkeypatch):
    record = Record(tmp_path / "job", PUSH)
    record.positions = {"a/b": SourcePosition()}
    scheduler = Scheduler(record)
    scheduler.savepoint(tmp_path / "older", stop=False)
    record.publish()
    scheduler.savepoint(tmp_path / "newer", stop=False)

    def full(catalog, manifest):
        raise CheckpointError("full")

    monkeypatch.setattr(Catalog, "publish", full)
    with pytest.raises(CheckpointError, match="full"):
        resumed(tmp_path / "older", tmp_path / "own", PUSH)
    monkeypatch.undo()
    opened, _ = resumed(tmp_path / "newer", tmp_path / "own", PUSH)
    assert (opened.checkpoints.newest, opened.generation) == (3, 3)


def test_superseded_checkpoint_makes_no_savepoint_and_its_folder_continues_from_the_later_run(tmp_path):
    record = Record(tmp_path / "job", PUSH)
    record.positions = {"a/b": SourcePosition()}
    first = record.publish()
    call = Submit("job", "1", (PUSH,), job_options({"checkpoint": record.folder.url}), {}, b"", first, "first")
    open_checkpoints(record.folder.url, call, above=0)
    # The scheduler of the first run is lost for its users, and goes on.
    with pytest.raises(CheckpointError, match="a later run of the job began from an earlier checkpoint"):
        Scheduler(record).savepoint(tmp_path / "savepoint", stop=True)
    assert not record.checkpoints.held
    assert Catalog(record.folder).load().number == first

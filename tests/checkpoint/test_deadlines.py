"""Storage that does not answer: every call ends, and what was copied for given-up checkpoints is dropped."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_elastic.checkpoint import deadline, file_ref
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.epoch_spool import EpochSpool
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.runtime.protocol.checkpoint_calls import Acknowledge, CheckpointFailed
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.worker.checkpoint_keeper import CheckpointKeeper
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.vocab.epoch import EpochRecord
from dask_elastic.vocab.errors import CheckpointError, StateDiskError
from dask_elastic.vocab.identity import ExecutorId

FOLLOWED = ExecutorId("followed", 0)


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """A folder whose storage does not answer until the test ends."""
    monkeypatch.setattr(deadline, "SECONDS", 0.05)
    folder, gate = CheckpointFolder(tmp_path), threading.Event()
    folder._files = SimpleNamespace(
        **dict.fromkeys(("write", "claim", "read", "sizes", "folders", "delete"), lambda *given: gate.wait())
    )
    yield folder
    gate.set()


CALLS = {
    "write": lambda folder: Catalog(folder).folder.write("a", [b"rows"]),
    "publish": lambda folder: Catalog(folder).publish(Manifest("delays", 1, 1, 0.0, 0.5, FileRef("t", 1, "crc32:0"))),
    "read": lambda folder: folder.read(FileRef("a", 4, "crc32:0")),
    "list": lambda folder: Catalog(folder).load(),
    "reserve": next_generation,
    "check": CheckpointFolder.check_writable,
    "delete": lambda folder: folder.delete("a"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_storage_that_does_not_answer_is_an_error(hanging, call):
    with pytest.raises(CheckpointError, match="the storage has not answered within 0 s"):
        call(hanging)


def storage_threads():
    return sum(thread.name == "elastic-storage" for thread in threading.enumerate())


def test_calls_that_never_return_are_bounded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(deadline, "SECONDS", 0.02)
    hung, other, gate = CheckpointFolder(tmp_path / "hung"), CheckpointFolder(tmp_path / "other"), threading.Event()
    begun = []
    hung._files = SimpleNamespace(sizes=lambda folder: begun.append(gate.wait()) or {})
    wait_for(lambda: storage_threads() == 0)
    for _ in range(deadline.MOST_OVERDUE):
        with pytest.raises(CheckpointError, match="has not answered within"):
            hung.sizes("a")
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"8 earlier calls have not returned.*restart this process"):
            hung.sizes("a")
    assert storage_threads() == deadline.MOST_OVERDUE
    logged = [record.levelname for record in caplog.records if record.name == deadline.logger.name]
    assert logged == ["ERROR"]
    # The other storage answers, though perhaps late on a busy machine.
    monkeypatch.setattr(deadline, "SECONDS", 20)
    assert other.sizes("a") == {}
    gate.set()
    wait_for(lambda: len(begun) == deadline.MOST_OVERDUE and storage_threads() == 0)
    assert hung.sizes("a") == {}


class BelatedFileSystem(MemoryFileSystem):
    """A file system that writes at once, and reports a failure only when a gate opens."""

    protocol = "belated"
    gate = threading.Event()

    def pipe_file(self, path, value, mode="overwrite", **options):
        super().pipe_file(path, value, mode=mode, **options)
        self.gate.wait(20)
        raise OSError("the connection was closed")


fsspec.register_implementation("belated", BelatedFileSystem, clobber=True)


def published(folder):
    catalog = Catalog(folder)
    catalog.publish(Manifest("delays", 1, 1, 0.0, 0.5, FileRef("t", 1, "crc32:0")))
    return lambda: catalog.numbers() == [1]


def committed(folder):
    spool, record = EpochSpool(folder, "flights"), EpochRecord(1, "q", 0, 0, 0, ())
    with pytest.raises(CheckpointError, match="has not answered"):
        spool.append(record)
    assert spool.contains(record)
    return lambda: spool.records() == [record]


@pytest.mark.parametrize("write", [published, committed])
def test_file_that_was_read_back_stays_when_its_request_fails_later(write, monkeypatch):
    """Sinks have committed the checkpoint by then, or Spark has forgotten the epoch."""
    wait_for(lambda: storage_threads() == 0)
    monkeypatch.setattr(BelatedFileSystem, "gate", threading.Event())
    real = deadline._overdue.add

    def add(storage, call):
        real(storage, call)
        # It is read back without haste, though perhaps on a busy machine.
        monkeypatch.setattr(deadline, "SECONDS", 20)

    monkeypatch.setattr(deadline._overdue, "add", add)
    monkeypatch.setattr(deadline, "SECONDS", 0.05)
    is_there = write(CheckpointFolder(f"belated://{write.__name__}"))
    BelatedFileSystem.gate.set()
    wait_for(lambda: storage_threads() == 0)
    assert is_there()


def test_large_file_has_more_time(monkeypatch):
    monkeypatch.setattr(deadline, "SECONDS", 0.05)
    monkeypatch.setattr(deadline, "SLOWEST", 100)
    gate = threading.Event()
    threading.Timer(0.2, gate.set).start()
    assert deadline.within(lambda: deadline.seconds_for(2_000), gate.wait)


def test_deadline_counts_from_before_the_call(monkeypatch):
    """The thread that waits may continue only long after the call has begun."""
    now, begun, given_up = [0.0], threading.Event(), threading.Event()

    class Begun(threading.Thread):
        def start(self):
            super().start()
            assert begun.wait(20)

    def hang():
        now[0] = 100.0
        begun.set()
        assert given_up.wait(20), "the deadline passed without an effect"

    monkeypatch.setattr(deadline, "threading", SimpleNamespace(Thread=Begun, Event=threading.Event))
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(TimeoutError):
        deadline.within(lambda: 0.05, hang)
    given_up.set()


def test_storage_does_not_answer_for_rows_that_arrive_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr(deadline, "SECONDS", 0.05)
    folder, now, looks, waiting = CheckpointFolder(tmp_path), [0.0], [], threading.current_thread()

    def clock():
        if threading.current_thread() is waiting:
            looks.append(now[0])
        return now[0]

    def arriving():
        yield b"ro"
        now[0] = 100.0
        # By then, the thread that waits has compared the time with the deadline.
        wait_for(lambda: looks.count(100.0) >= 6)
        yield b"ws"

    for module in (deadline, file_ref):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    assert folder.read(folder.write("epochs/rows", arriving())).to_pybytes() == b"rows"


class Store:
    """Four shards, all of which change between any two cuts."""

    shards = 4
    input_schema = None
    event_time = None

    def __init__(self):
        self.full = []

    def cut(self, choose):
        counts = pa.array([1] * self.shards).to_numpy()
        self.full.append(choose(counts, 100 * counts))
        return SimpleNamespace(full=None, changes=None)


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    """A keeper, the calls that it made, and a gate without which no file is written."""
    gate, calls = threading.Event(), []

    def write(folder, path, header, parts):
        gate.wait(20)
        return FileRef(path, 1, "crc32:0", 1)

    monkeypatch.setattr("dask_elastic.runtime.worker.checkpoint_keeper.write", write)
    threads = JobThreads("delays", calls.append)
    header = StateHeader("followed", 0, 1, Store.shards, 0, frozenset())
    made = CheckpointKeeper(
        JobGeneration("delays", 1), CheckpointFolder(tmp_path), threads, calls.append, {FOLLOWED: header},
        {"followed": 0},
    )  # fmt: skip
    made.start()
    yield made, calls, gate
    gate.set()
    threads.end()
    made.abort()
    assert threads.join(20) == []


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_given_up_checkpoints_leave_no_copies_while_the_storage_hangs(keeper):
    made, calls, gate = keeper
    store = Store()
    made.cut(1, FOLLOWED, store, 0.0, None)
    wait_for(lambda: not made._work)
    for checkpoint in range(2, 30):
        made.cut(checkpoint, FOLLOWED, store, 0.0, None)
        made.prepared(checkpoint, ExecutorId("out", 0), ())
        assert sum(work.executor == FOLLOWED for work in made._work) == 1
        made.give_up(checkpoint)
        assert not made._work
    made.cut(30, FOLLOWED, store, 0.0, None)
    # What was dropped is contained in full.
    assert store.full[-1] == frozenset(range(Store.shards))
    gate.set()
    wait_for(lambda: any(call.number == 30 for call in calls))
    assert all(isinstance(call, Acknowledge | CheckpointFailed) for call in calls)
    assert [call.number for call in calls if isinstance(call, Acknowledge)] == [30]


def test_later_cut_drops_the_earlier_one_that_was_not_written(keeper):
    made, calls, gate = keeper
    store = Store()
    for checkpoint in (1, 2, 3):
        made.cut(checkpoint, FOLLOWED, store, 0.0, None)
    assert sum(work.executor == FOLLOWED for work in made._work) <= 1
    gate.set()
    wait_for(lambda: any(call.number == 3 for call in calls))
    assert isinstance(calls[-1], Acknowledge)
    assert isinstance(made._chains[FOLLOWED].at(3), Chain)


def test_cut_without_space_on_the_local_disk_fails_its_checkpoint_only(keeper):
    made, calls, gate = keeper
    gate.set()
    store, full = Store(), Store()

    def cut(choose):
        Store.cut(full, choose)
        raise StateDiskError("state on disk: no space")

    full.cut = cut
    made.cut(1, FOLLOWED, store, 0.0, None)
    made.cut(2, FOLLOWED, full, 0.0, None)
    wait_for(lambda: any(call.number == 2 for call in calls))
    made.cut(3, FOLLOWED, store, 0.0, None)
    wait_for(lambda: any(call.number == 3 for call in calls))
    assert [call.number for call in calls if isinstance(call, CheckpointFailed)][-1] == 2
    assert isinstance(calls[-1], Acknowledge)
    assert [link.number for link in made._chains[FOLLOWED].at(3).links][-1] == 3
    assert 2 not in [link.number for link in made._chains[FOLLOWED].links]

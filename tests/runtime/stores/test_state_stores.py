"""Which stores of a job are on disk, and which move there when memory is short."""

from __future__ import annotations

import dask
import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.runtime.worker.stores.state_stores import StateStores, state_files
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.aggregate import Count
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import StateMemoryExceeded, SubmitError
from dask_elastic.vocab.identity import ExecutorId

MIB = 2**20


def stores_of(folder, limit=0, **options):
    memory = Memory(limit, WorkerOptions(), lambda: 10)
    return StateStores(state_files(folder, memory), job_options(options), memory)


def added(stores, name, store=None):
    made = ComponentStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
    stores.add(ExecutorId(name, 0), [Compute(name, ("k",), {"n": Count()}, store=store)], made)
    made.declare(pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64))])
    made.grant(0, 0)
    return made


def fill(store, keys):
    rows = pa.record_batch({"k": np.arange(keys)})
    session = store.session(0)
    located = session.locate(rows, ["k"], np.arange(keys).astype(np.uint64))
    session.apply(located, lambda current: [current[0] + 1])


@pytest.mark.parametrize(
    ("option", "own", "on_disk"),
    [("memory", None, False), ("disk", None, True), ("memory", "disk", True), ("disk", "memory", False)],
)
def test_operator_overrides_where_the_job_keeps_state(tmp_path, option, own, on_disk):
    store = added(stores_of(tmp_path, state_store=option), "a", own)
    assert store.storage.on_disk == on_disk


def test_default_keeps_state_in_memory_and_unknown_stores_are_named(tmp_path):
    assert dask.config.get("elastic.state-store") == "memory"
    assert not added(stores_of(tmp_path), "a").storage.on_disk
    with pytest.raises(SubmitError, match="state_store"):
        stores_of(tmp_path, state_store="ssd")


def test_store_moves_to_disk_when_state_exceeds_its_share_of_memory(tmp_path):
    stores = stores_of(tmp_path, limit=100 * MIB, state_store="auto", state_memory=0.1)
    first, second = added(stores, "a"), added(stores, "b")
    fill(first, 100_000)
    assert not first.storage.on_disk
    fill(second, 200_000)
    assert second.storage.on_disk
    assert len(second) == 200_000
    assert not first.storage.on_disk
    assert stores.in_memory


def test_largest_movable_store_moves_when_memory_is_short(tmp_path):
    stores = stores_of(tmp_path, state_store="auto")
    small, large, fixed = added(stores, "small"), added(stores, "large"), added(stores, "fixed", "memory")
    for store, keys in ((small, 100), (large, 5_000), (fixed, 9_000)):
        fill(store, keys)
    moved = []
    while stores.relieve():
        moved.append([store.storage.on_disk for store in (small, large, fixed)])
    assert moved == [[False, True, False], [True, True, False]]
    assert stores.nbytes() == fixed.state_bytes()
    error = stores.exceeded("tcp://worker", "job", "full")
    assert isinstance(error, StateMemoryExceeded)
    assert "fixed" in str(error)
    assert "small" not in str(error)


@pytest.mark.parametrize(("own", "moves"), [("auto", True), ("memory", False)])
def test_state_that_comes_here_moves_when_memory_is_short(tmp_path, own, moves):
    stores, started = stores_of(tmp_path, state_store="memory"), []
    comes = ComponentStore(1, lambda hashes: np.zeros(len(hashes), np.intp))
    stores.place([Compute("a", ("k",), {"n": Count()}, store=own)], comes)
    comes.declare(pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64))])
    comes.grant(0, 0)
    fill(comes, 1_000)
    stores.expect(ExecutorId("a", 0), comes)
    assert stores.relieve_soon(lambda name, run: started.append(run)) == moves
    for run in started:
        run()
    assert (comes.storage.on_disk, len(comes)) == (moves, 1_000)


def test_thread_moves_stores_and_a_worker_without_any_left_is_told(tmp_path):
    stores, started = stores_of(tmp_path, state_store="auto"), []
    store, empty = added(stores, "a"), added(stores, "b")
    fill(store, 100)

    def start(name, run):
        started.append(run)

    assert stores.relieve_soon(start)
    assert stores.relieve_soon(start)
    assert len(started) == 1
    started[0]()
    assert store.storage.on_disk
    # The other store may have state by now.
    assert stores.relieve_soon(start)
    started[1]()
    assert not empty.storage.on_disk
    assert not stores.relieve_soon(start)
    fixed = stores_of(tmp_path)
    added(fixed, "c")
    assert not fixed.relieve_soon(start)


def test_store_that_is_forgotten_while_it_is_chosen_is_no_error(tmp_path):
    stores = stores_of(tmp_path, state_store="auto")
    store = added(stores, "a")
    fill(store, 100)
    measured = store.state_bytes

    def state_bytes():
        nbytes = measured()
        stores.remove(ExecutorId("a", 0), store)
        return nbytes

    store.state_bytes = state_bytes
    assert stores.relieve()
    assert not stores.relieve()


def test_stores_of_ended_remote_tasks_are_forgotten(tmp_path):
    stores = stores_of(tmp_path)
    before = added(stores, "a")
    store = added(stores, "a")
    stores.remove(ExecutorId("a", 0), before)
    assert stores.in_memory, "the tasks of a later incarnation have a store of their own"
    stores.remove(ExecutorId("a", 0), store)
    assert not stores.in_memory
    stores.remove(ExecutorId("a", 0), store)

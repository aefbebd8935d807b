"""Sweeping: expired state is removed, some keys at a time, and deltas carry the tombstones to other copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.state import KeyedStore, List, Map, StateLayout, StateView, Value
from dask_elastic.state.expiry.sweeper import LEAST_KEYS, Sweeper

pytestmark = pytest.mark.usefixtures("storage")

SHARDS = 4
TTL = 10.0


class Bench:
    """A store in which task 0 owns the even shards and task 1 the odd ones."""

    def __init__(self, declared: dict[str, Any], track_dirty: bool = False) -> None:
        self.layout = StateLayout(declared)
        self.store = KeyedStore(SHARDS, lambda hashes: (hashes % SHARDS).astype(np.intp), track_dirty=track_dirty)
        self.store.declare(pa.schema({"key": pa.int64()}), self.layout.fields)
        for shard in range(SHARDS):
            self.store.grant(shard, shard % 2)
        self.sessions = [self.store.session(task) for task in range(2)]

    def view(self, keys: Any, now: float) -> StateView:
        keys = np.asarray(keys)
        task = int(keys[0]) % 2
        rows = pa.record_batch({"key": keys})
        located = self.sessions[task].locate(rows, ["key"], keys.astype(np.uint64))
        return StateView(self.sessions[task], located, rows, ["key"], self.layout, now)

    def put(self, keys: Any, now: float) -> None:
        view = self.view(keys, now)
        for name, kind in self.layout.kinds.items():
            if isinstance(kind, Value):
                view.set(name, np.arange(len(view)))
            elif isinstance(kind, List):
                view.list(name).append(np.arange(len(keys)))
            else:
                view.map(name).put(np.arange(len(keys)), np.arange(len(keys)))
        view.commit()

    def keys(self) -> set[int]:
        return set(self.store.rows()[0]["key"].to_pylist())

    def sweep(self, task: int, now: float, rounds: int = 1) -> None:
        sweeper = Sweeper(self.sessions[task], self.layout)
        for _ in range(rounds):
            sweeper.step(now, 0)


ALL_EXPIRE = {
    "v": Value(pa.int64(), ttl=TTL),
    "l": List(pa.int64(), ttl=TTL),
    "m": Map(pa.int64(), pa.int64(), ttl=TTL),
}


@pytest.mark.parametrize("names", [["v"], ["l"], ["m"], ["v", "l", "m"]])
def test_sweep_key_with_all_state_expired_removes_key(names):
    bench = Bench({name: ALL_EXPIRE[name] for name in names})
    bench.put([0, 2], now=100.0)
    bench.put([4], now=105.0)
    bench.put([1], now=100.0)
    before = bench.store.state_bytes()
    bench.sweep(0, now=np.nextafter(110.0, 0))
    assert bench.keys() == {0, 1, 2, 4}
    bench.sweep(0, now=110.0)
    assert bench.keys() == {1, 4}, "the other task sweeps its own shards"
    assert bench.store.state_bytes() < before
    bench.sweep(1, now=110.0)
    bench.sweep(0, now=115.0)
    assert bench.keys() == set()
    assert bench.store.state_bytes() == 0


def test_sweep_value_without_ttl_keeps_key():
    bench = Bench({**ALL_EXPIRE, "total": pa.int64()})
    bench.put([0, 2], now=100.0)
    bench.sweep(0, now=1000.0)
    assert bench.keys() == {0, 2}
    _, values = bench.store.rows()
    layout = bench.layout
    assert [values[layout.spans[name].start].lengths.tolist() for name in ("l", "m")] == [[0, 0], [0, 0]]
    assert values[layout.spans["v"].start + 1].tolist() == [False, False]
    assert values[layout.spans["total"].start + 1].tolist() == [True, True]


def test_sweep_step_is_bounded_and_round_visits_all_keys():
    bench = Bench({"v": Value(pa.int64(), ttl=TTL)})
    keys = np.arange(0, 40 * LEAST_KEYS, 2)
    bench.put(keys, now=100.0)
    sweeper = Sweeper(bench.sessions[0], bench.layout)
    left = [len(bench.keys())]
    while left[-1]:
        sweeper.step(200.0, 0)
        left.append(len(bench.keys()))
    assert np.diff(left).min() == -LEAST_KEYS
    assert len(left) == 1 + len(keys) / LEAST_KEYS
    assert bench.store.slots.used == 0, "slots are freed at the end of a round"
    bench.put(keys[:3], now=300.0)
    assert bench.keys() == {0, 2, 4}


def test_sweep_step_after_larger_batch_visits_more_keys():
    bench = Bench({"v": Value(pa.int64(), ttl=TTL)})
    bench.put(np.arange(0, 4000, 2), now=100.0)
    Sweeper(bench.sessions[0], bench.layout).step(200.0, keys=700)
    assert len(bench.keys()) == 2000 - 1400


def test_sweep_without_ttl_removes_nothing():
    bench = Bench({"v": pa.int64()})
    view = bench.view([0], now=0.0)
    view.set("v", pa.array([None], pa.int64()))
    view.commit()
    bench.sweep(0, now=1e12)
    assert bench.keys() == {0}


def test_flush_of_swept_keys_deletes_them_from_primary_copy():
    home, remote = Bench(ALL_EXPIRE), Bench(ALL_EXPIRE, track_dirty=True)
    for shard in range(SHARDS):
        home.store.revoke(shard)
    remote.put([0, 2], now=100.0)
    home.store.install(remote.store.extract(dirty_only=True))
    assert home.keys() == {0, 2}
    remote.put([2], now=105.0)
    remote.put([4], now=106.0)
    remote.sweep(0, now=112.0)
    flushed = remote.store.extract(dirty_only=True)
    assert flushed.column("__deleted").to_pylist().count(True) == 1
    home.store.install(flushed)
    assert home.keys() == remote.keys() == {2, 4}
    assert remote.store.extract(dirty_only=True).num_rows == 0
    remote.put([0], now=113.0)
    home.store.install(remote.store.extract(dirty_only=True))
    assert home.keys() == {0, 2, 4}


def test_flush_of_key_deleted_and_swept_before_flush_deletes_it_from_primary_copy():
    home, remote = Bench(ALL_EXPIRE), Bench(ALL_EXPIRE, track_dirty=True)
    remote.put([0], now=100.0)
    home.store.install(remote.store.extract(dirty_only=True))
    view = remote.view([0], now=101.0)
    view.set("v", pa.array([None], pa.int64()))
    view.list("l").clear()
    view.map("m").clear()
    view.commit()
    remote.sweep(0, now=102.0)
    assert remote.keys() == set()
    home.store.install(remote.store.extract(dirty_only=True))
    assert home.keys() == set()


def test_tombstone_installed_as_dirty_is_extracted_again():
    first, second, third = (Bench(ALL_EXPIRE, track_dirty=True) for _ in range(3))
    first.put([0, 2], now=100.0)
    for bench in (second, third):
        bench.store.install(first.store.extract())
    first.put([2], now=108.0)
    first.sweep(0, now=111.0)
    second.store.install(first.store.extract(dirty_only=True), dirty=True)
    third.store.install(second.store.extract(dirty_only=True))
    assert third.keys() == second.keys() == first.keys() == {2}
    assert len(second.store) == 1


def test_full_extract_omits_deleted_keys():
    bench = Bench(ALL_EXPIRE, track_dirty=True)
    bench.put([0, 2], now=100.0)
    bench.put([2], now=108.0)
    bench.sweep(0, now=111.0)
    whole = bench.store.extract()
    assert whole["key"].to_pylist() == [2]
    assert whole.column("__deleted").to_pylist() == [False]

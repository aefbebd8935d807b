"""The state of two owners of a shard is kept apart at home, and each is whole when the earlier one has left."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor.moving import handed_over
from dask_elastic.executor.moving.handed_over import HandedOver
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.instant import InstantMove
from dask_elastic.state import KeyedStore
from dask_elastic.topology.aggregates.field import Field

SHARD, OTHER = 0, 1
KEYS = 5


@pytest.fixture(autouse=True)
def portions_of_one_key(monkeypatch):
    monkeypatch.setattr(handed_over, "PORTION_BYTES", 1)


def shard_of(hashes):
    return (hashes % 2).astype(np.intp)


def store_of(values, make=KeyedStore):
    """Return a store with a value for each key; even keys are of the shard."""
    store = make(2, shard_of)
    store.track_dirty = True
    store.declare(pa.schema({"key": pa.int64()}), [Field("value", np.dtype(np.int64), 0)])
    for shard in (SHARD, OTHER):
        store.grant(shard, 0)
    if values:
        rows = pa.record_batch({"key": pa.array([*values], pa.int64())})
        session = store.session(0)
        located = session.locate(rows, ["key"], np.array([*values], np.uint64))
        session.apply(located, lambda current: [np.array([values[key] for key in np.array([*values])[located.first]])])
    return store


def flushed(values):
    return store_of(values).extract(dirty_only=True)


def values_in(store):
    keys, (values,) = store.rows()
    return dict(zip(keys["key"].to_pylist(), values.tolist(), strict=True))


def handed_values(handed):
    state = handed.state()
    parts = [*iter(lambda: state.take(100), None)]
    return {key: value for part in parts for key, value in zip(part["key"].to_pylist(), part["value"].to_pylist(),
                                                              strict=True)}  # fmt: skip


BEFORE = {2 * key: 10 + key for key in range(KEYS)}


def a_move(smooth, at_home):
    handed = HandedOver(InstantMove(SHARD, 0, 1, smooth=smooth), source_at_home=at_home)
    handed.begin(KeyedStore(2, shard_of))
    return handed


@pytest.mark.parametrize("smooth", [False, True])
def test_state_of_a_remote_source_has_what_it_flushes_meanwhile(smooth):
    store = store_of(BEFORE | {1: 1}, PrimaryState)
    handed = a_move(smooth, at_home=False)
    assert handed.move_portion(store)
    assert handed.move_portion(store)
    assert not handed.is_taken
    # One key that was taken, one that was not, and a new one.
    changed = {0: 50, 8: 58, 20: 70}
    handed.change(flushed(changed))
    while handed.move_portion(store):
        pass
    assert handed.is_taken
    handed.change(flushed({2: 52}))
    assert values_in(store) == {1: 1}
    assert handed_values(handed) == BEFORE | changed | {2: 52}


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("portions", [0, 2, 9])
def test_state_is_put_back_when_a_move_is_cancelled(smooth, portions):
    store = store_of(BEFORE | {1: 1}, PrimaryState)
    handed = a_move(smooth, at_home=False)
    for number in range(portions):
        if number == 1:
            handed.change(flushed({0: 50, 8: 58}))
        handed.move_portion(store)
    handed.put_back(store)
    assert values_in(store) == BEFORE | {1: 1} | ({0: 50, 8: 58} if portions > 1 else {})
    assert not handed.is_aside


@pytest.mark.parametrize("smooth", [False, True])
def test_flushes_of_the_target_take_the_place_of_a_source_at_home(smooth):
    store = store_of(BEFORE | {1: 1}, PrimaryState)
    handed = a_move(smooth, at_home=True)
    handed.change(flushed({0: 50, 2: 52}))
    assert not handed.move_portion(store), "the source still works on the primary copy"
    handed.is_free = True
    for _ in range(KEYS + 1):
        assert handed.move_portion(store)
    # Behind the first of the target's portions.
    handed.change(flushed({0: 60, 30: 61}))
    while handed.move_portion(store):
        pass
    assert values_in(store) == {1: 1, 0: 60, 2: 52, 30: 61}
    assert not handed.is_aside
    assert handed_values(handed) == BEFORE

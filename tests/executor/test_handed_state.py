"""State that is handed over in parts is the newest of each key, whatever has changed since it was taken."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.state import KeyedStore
from dask_elastic.topology.aggregates.field import Field

HOMONYM = 1 << 40
"""Keys that differ by this have the same hash, and different checks."""


def state_of(values, deleted=()):
    """Return encoded state of keys with values, and tombstones of others."""
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.intp), track_dirty=True)
    store.declare(pa.schema({"key": pa.int64()}), [Field("value", np.dtype(np.int64), 0)])
    store.grant(0, 0)
    session = store.session(0)
    keys = [*values, *deleted]
    if not keys:
        return store.extract()
    hashes = np.array([key % HOMONYM for key in keys], np.uint64)
    checks = np.array([key // HOMONYM for key in keys], np.uint64)
    located = session.locate(pa.record_batch({"key": pa.array(keys, pa.int64())}), ["key"], hashes, checks)
    wanted = dict.fromkeys(deleted, -1) | values
    new = np.array([wanted[keys[row]] for row in located.first.tolist()])
    session.apply(located, lambda current: [new])
    session.sweep(0, len(keys), lambda held, count, times: (held, held[0] >= 0), None)
    return store.extract(dirty_only=True)


keys = st.integers(0, 5) | st.integers(HOMONYM, HOMONYM + 5)
some_state = st.tuples(st.dictionaries(keys, st.integers(0, 99)), st.sets(keys))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(keys, st.integers(0, 99)), st.integers(1, 4), st.lists(some_state, max_size=3), st.integers(1, 7)
)
def test_each_key_has_its_newest_value_once(first, parts, changes, rows):
    listed = list(first.items())
    taken = [state_of(dict(listed[number::parts])) for number in range(parts)]
    wanted = dict(first)
    noted = []
    for values, deleted in changes:
        noted.append(state_of(values, deleted - values.keys()))
        wanted = {key: value for key, value in wanted.items() if key not in deleted} | values
    handed = HandedState(taken, noted)
    found = []
    while (part := handed.take(rows)) is not None:
        assert 1 <= part.num_rows <= rows
        assert not any(part["__deleted"].to_pylist())
        found += zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True)
    assert len(found) == len(wanted)
    assert dict(found) == wanted


def test_parts_have_the_bytes_that_are_wanted():
    state = state_of({key: key for key in range(100)})
    handed = HandedState([state])
    sizes = [part.num_rows for part in iter(lambda: handed.take(1_000, state.nbytes / 10), None)]
    assert sum(sizes) == 100
    assert 9 <= len(sizes) <= 12

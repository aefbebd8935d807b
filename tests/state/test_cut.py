"""What a cut of state in memory contains: changes, tombstones, shards in full; later changes do not reach it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.state import KeyedStore, decode, slots
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.ragged import Ragged

SHARDS = 3
FIELDS = (
    Field("count", np.dtype(np.int64), 0),
    Field("note", np.dtype(object), None),
    Field("seen", np.dtype(np.int64), 0, ragged=True),
)


@pytest.fixture(scope="module", autouse=True)
def small_windows():
    """Have several ranges of slots without thousands of keys."""
    patch = pytest.MonkeyPatch()
    patch.setattr(slots, "_WINDOW", 4)
    yield
    patch.undo()


def made():
    store = KeyedStore(SHARDS, lambda hashes: (hashes % SHARDS).astype(np.intp), track_dirty=True)
    store.declare(pa.schema({"key": pa.int64()}), FIELDS)
    for shard in range(SHARDS):
        store.grant(shard, 0)
    return store, store.session(0)


def count(session, keys):
    """Count keys, and append each count to a list."""
    wanted = np.array(sorted(keys), np.int64)
    located = session.locate(pa.record_batch({"key": wanted}), ["key"], wanted.astype(np.uint64))

    def more(current):
        number = current[0] + 1
        seen = current[2].joined(Ragged.of_lengths(number, np.ones(len(number), np.int64)))
        return [number, np.array([f"n{one}" for one in number], object), seen]

    session.apply(located, more)


def expected(counts, keys):
    """Return what a cut should have of some keys."""
    return {key: (counts[key], f"n{counts[key]}", list(range(1, counts[key] + 1)), key % SHARDS) for key in keys}


def rows_of(parts):
    """Return the state and the shard of each key of a cut."""
    found = {}
    for part in parts:
        for batch in part.batches():
            rows = decode(batch)
            assert not rows.deleted.any()
            keys = rows.keys["key"].to_pylist()
            assert (rows.hashes == np.array(keys, np.uint64)).all()
            assert not found.keys() & set(keys), "a key is in a cut once"
            number, note, seen = rows.values
            state = zip(number.tolist(), note.tolist(), seen.to_lists(), rows.shards.tolist(), strict=True)
            found |= dict(zip(keys, [(n, text, list(some), shard) for n, text, some, shard in state], strict=True))
    return found


keys_of_a_batch = st.sets(st.integers(0, 40), min_size=1) | st.just(set(range(40)))


@given(st.lists(st.tuples(keys_of_a_batch, st.sets(st.integers(0, SHARDS - 1)) | st.none()), min_size=1, max_size=6))
def test_cuts_have_what_has_changed_and_shards_in_full_as_they_were(batches):
    store, session = made()
    counts, changed, taken = Counter(), set(), []
    for keys, in_full in batches:
        count(session, keys)
        counts.update(keys)
        changed |= keys
        if in_full is None:
            continue
        parts = store.cut(lambda _changed, _live: in_full)  # noqa: B023
        wanted = {key for key in counts if key % SHARDS in in_full or key in changed}
        taken.append((parts, expected(counts, wanted)))
        changed = set()
    # They are encoded after all later changes.
    for parts, wanted in taken:
        assert rows_of(parts) == wanted
        assert sum(map(len, parts)) == len(wanted)


def test_cut_without_changes_has_no_rows_and_all_fields():
    store, session = made()
    count(session, range(10))
    store.cut(lambda changed, live: ())
    (part,) = store.cut(lambda changed, live: ())
    assert len(part) == 0
    assert part.fields == FIELDS

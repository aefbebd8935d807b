"""A link between two stores finds the slots of keys while both keep their layouts, and no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.fused.key_link import KeyLink
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import StateError

SHARDS = 4


class Stores:
    """Two stores of one component, with a task's sessions and the link between them."""

    def __init__(self):
        self.first = ComponentStore(SHARDS, lambda hashes: (hashes % SHARDS).astype(int))
        self.second = self.first.behind("second")
        for store in (self.first, self.second):
            store.declare(pa.schema({"key": pa.string()}), [Field("count", np.dtype(np.int64), 0)])
        for shard in range(SHARDS):
            self.first.grant(shard, 1)
        self.sessions = [store.session(1) for store in (self.first, self.second)]
        self.link = KeyLink(self.sessions[1])

    def locate(self, keys, session):
        rows = pa.record_batch({"key": keys})
        return session.locate(rows, ["key"], hash_columns(rows, ["key"]))

    def looked_up(self, keys):
        return [self.locate(keys, session) for session in self.sessions]

    def linked(self, keys):
        """Return the keys of the second store's slots that the link gives, in the order of the first one's."""
        before = self.locate(keys, self.sessions[0])
        found = self.link.located(before, lambda: pytest.fail("nothing changes meanwhile"))
        if found is None:
            return None
        of_slots = [self.first.keys_of(before.slots), self.second.keys_of(found.slots)]
        assert of_slots[0].equals(of_slots[1])
        assert found.grouping.sizes.tolist() == [1] * len(found)
        return of_slots[1].column("key").to_pylist()


@pytest.fixture
def stores():
    made = Stores()
    # The second store has its keys in another order.
    made.locate(["c", "x", "b"], made.sessions[1])
    made.link.note(*made.looked_up(["a", "b", "c"]))
    return made


def test_link_finds_keys_that_were_looked_up(stores):
    assert sorted(stores.linked(["c", "a"])) == ["a", "c"]
    assert stores.linked(["a", "d"]) is None
    stores.link.note(*stores.looked_up(["d", "a"]))
    assert sorted(stores.linked(["b", "d"])) == ["b", "d"]


@pytest.mark.parametrize("packed", ["first", "second"])
def test_link_finds_nothing_after_one_of_the_stores_was_packed(stores, packed):
    getattr(stores, packed)._pack()
    assert stores.linked(["a", "b"]) is None
    stores.link.note(*stores.looked_up(["b", "a"]))
    assert sorted(stores.linked(["a", "b"])) == ["a", "b"]


def test_link_refuses_keys_of_shards_that_another_task_owns(stores):
    before = stores.locate(["a", "b", "c"], stores.sessions[0])
    for shard in range(SHARDS):
        stores.first.revoke(shard)
    with pytest.raises(StateError, match="which no task owns"):
        stores.link.located(before, lambda: pytest.fail("nothing changes meanwhile"))

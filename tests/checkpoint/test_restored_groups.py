"""Key groups that have moved are restored to any number of executors, from the files of those that owned them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from checkpointed import PLANES, Job, contents
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state import KeyedStore

GROUPS = 6
PLANE = st.integers(0, 30).map("N{}".format)
CHANGES = st.dictionaries(PLANE, st.none() | st.integers(0, 1000), min_size=1, max_size=12)
MOVES = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(0, 4)), max_size=4)


class GroupSpace:
    """The key space of an operator of whose groups each executor owns some."""

    def __init__(self, table):
        self.table, self.shards, self.executors = table, GROUPS, len(table.homes)
        self.shard_of = KeySpace(1, GROUPS).shard_of

    def executor_of(self, hashes):
        return self.table.owners[self.shard_of(hashes)].astype(np.int64)


class GroupJob(Job):
    """One stateful operator whose groups move between its executors."""

    def __init__(self, folder, table):
        super().__init__(folder, len(table.homes), GROUPS, most=4)
        self.space = GroupSpace(table)

    def move(self, group, executor):
        """Move a group: it leaves tombstones, and what has come is marked as changed."""
        before = int(self.space.table.owners[group])
        if before != executor:
            rows = self.stores[before].extract([group])
            if rows is not None:
                self.stores[executor].install(rows, dirty=True)
                self.stores[before].remove([group])
            self.space.table.owners[group] = executor

    def state(self):
        """Take a checkpoint; return the operator's part of the manifest."""
        state = self.checkpoint().state(PLANES.name)
        return replace(state, owned=tuple(map(self.space.table.owned_by, range(len(self.stores)))))

    @classmethod
    def continued(cls, folder, state, table):
        """Return the job as it was at a checkpoint, with the owners of a table."""
        job = cls(folder, table)
        job.stores = [KeyedStore(GROUPS, job.space.shard_of, track_dirty=True) for _ in table.homes]
        restored = [
            restore_executor(folder, state, executor, len(table.homes), store, groups=table.owned_by(executor))
            for executor, store in enumerate(job.stores)
        ]
        job.chains = [part.chain for part in restored]
        return job


@settings(max_examples=36, deadline=None)
@given(st.lists(st.tuples(CHANGES, MOVES), min_size=1, max_size=6), st.integers(2, 4), st.data())
def test_groups_continue_at_other_executors_with_the_state_of_their_last_owner(rounds, executors, data):
    folder = CheckpointFolder("memory://groups")
    folder._files._filesystem.store.clear()
    job, truth = GroupJob(folder, GroupTable.initial(GROUPS, [0] * executors)), {}
    for changes, moves in rounds:
        job.put(changes)
        truth = {plane: delay for plane, delay in (truth | changes).items() if delay is not None}
        for group, target in moves:
            job.move(group, target % len(job.stores))
        state = job.state()
        wanted = data.draw(st.integers(1, GROUPS))
        if data.draw(st.booleans()):
            make = GroupTable.of_parts if wanted == state.executors else GroupTable.spread
            job = GroupJob.continued(folder, state, make(GROUPS, [0] * wanted, dict(enumerate(state.owned))))
            assert job.contents() == truth
    table = GroupTable.spread(GROUPS, [0] * GROUPS, dict(enumerate(state.owned)))
    last = GroupJob.continued(folder, state, table)
    for executor, store in enumerate(last.stores):
        found = contents([store])
        own = {plane: delay for plane, delay in truth.items() if table.owners[_group(plane)] == executor}
        assert found == own
    last.put({"N0": 7})
    assert GroupJob.continued(folder, last.state(), table).contents() == truth | {"N0": 7}


def _group(plane):
    hashes = hash_columns(pa.record_batch({"plane": [plane]}), ("plane",))
    return int(KeySpace(1, GROUPS).shard_of(hashes)[0])

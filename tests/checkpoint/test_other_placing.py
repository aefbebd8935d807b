"""State is restored where its keys are now, if other columns route them, or there are other shards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.other_placing import OtherPlacing
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.routing.co_partition import key_hashes
from dask_elastic.routing.hashing import check_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.client.resume import _check_placing
from dask_elastic.runtime.protocol.job_spec import ComponentSummary
from dask_elastic.state import KeyedStore, StateRows, encode
from dask_elastic.topology import build_components
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import SubmitError

KEYS = ("area", "kind")
SCHEMA = pa.schema({"area": pa.string(), "kind": pa.int64()})
FIELDS = (Field("count", np.dtype(np.int64), 0),)
KEY = st.tuples(st.sampled_from("nsew"), st.integers(0, 5))
CHANGES = st.dictionaries(KEY, st.none() | st.integers(0, 99), max_size=8)
PLACES = st.tuples(st.sampled_from([KEYS, ("area",), ("kind",)]), st.integers(1, 3), st.sampled_from([1, 4, 6]))


class Placed:
    """The state of an operator, whose keys some of their columns place among executors."""

    def __init__(self, place):
        self.routed_by, executors, shards = place
        self.space = KeySpace(executors, shards)
        self.stores = [KeyedStore(shards, self.space.shard_of, track_dirty=True) for _ in range(executors)]
        self.chains = [Chain(shards) for _ in self.stores]

    def put(self, values):
        """Set the values of keys; None deletes one."""
        rows = pa.record_batch([[key[column] for key in values] for column in range(2)], schema=SCHEMA)
        hashes = key_hashes(rows, KEYS, self.routed_by, self.space.groups)
        deleted = np.array([value is None for value in values.values()], np.bool_)
        counts = np.array([value or 0 for value in values.values()], np.int64)
        identity = hashes, check_columns(rows, KEYS), self.space.shard_of(hashes).astype(np.int32)
        batch = encode(StateRows(*identity, rows, FIELDS, [counts], deleted))
        for executor, store in enumerate(self.stores):
            here = self.space.executor_of(hashes) == executor
            if here.any():
                store.install(batch.filter(pa.array(here)), dirty=True)

    def checkpoint(self, folder, number):
        """Write the changes since the last one; return the operator's part of the manifest."""
        for executor, store in enumerate(self.stores):
            chain = self.chains[executor]

            def choose(changed, live, executor=executor, chain=chain):
                self.chains[executor] = chain.cut(number, changed, live)
                return self.chains[executor].full(number)

            parts = store.cut(choose)
            if self.chains[executor].is_cut(number):
                shape = len(self.stores), self.space.shards
                header = StateHeader("kinds", executor, *shape, number, self.chains[executor].full(number), SCHEMA)
                file = state_file.write(folder, state_file.path_of(0, header, 1), header, parts)
                self.chains[executor] = self.chains[executor].written(number, file)
        chains = tuple(chain.at(number) for chain in self.chains)
        return OperatorState("kinds", KEYS, len(self.stores), self.space.shards, chains, routed_by=self.routed_by)

    @classmethod
    def restored(cls, folder, state, place):
        made = cls(place)
        placing = OtherPlacing.of(state, made.space, made.routed_by)
        for executor, store in enumerate(made.stores):
            found = restore_executor(folder, state, executor, made.space.executors, store, placing=placing)
            made.chains[executor] = found.chain
        return made

    def contents(self):
        """Return the values by key, after checking that each key is where routing finds it."""
        found = {}
        for executor, store in enumerate(self.stores):
            for row in [] if (state := store.extract()) is None else state.to_pylist():
                rows = pa.record_batch([[row["area"]], [row["kind"]]], schema=SCHEMA)
                hashed = key_hashes(rows, KEYS, self.routed_by, self.space.groups)
                assert (hashed[0], self.space.shard_of(hashed)[0]) == (row["__hash"], row["__shard"])
                assert self.space.executor_of(hashed)[0] == executor
                assert found.setdefault((row["area"], row["kind"]), row["count"]) is row["count"]
        return found


@settings(max_examples=60)
@given(st.lists(st.tuples(CHANGES, st.none() | PLACES), min_size=1, max_size=6), PLACES)
def test_state_is_restored_to_any_place(rounds, first):
    folder = CheckpointFolder("memory://placed")
    folder._files._filesystem.store.clear()
    job, truth = Placed(first), {}
    for number, (changes, place) in enumerate(rounds, 1):
        job.put(changes)
        truth = {key: value for key, value in (truth | changes).items() if value is not None}
        state = job.checkpoint(folder, number)
        if place is not None:
            job = Placed.restored(folder, state, place)
        assert job.contents() == truth


@pytest.mark.parametrize("place", [(KEYS, 4, 2), (KEYS, 8, 1)])
def test_state_keeps_its_groups_if_only_the_number_of_executors_differs(place):
    state = OperatorState("kinds", KEYS, 2, 4, (), routed_by=KEYS)
    assert OtherPlacing.of(state, KeySpace(*place[1:]), place[0]) is None


@pytest.mark.parametrize(("fuse", "refused"), [([("first", "hourly")], True), (False, False)])
def test_state_of_windows_is_not_given_to_other_shards(fuse, refused):
    topology = de.Topology("rides")
    table = pa.table({"area": ["n"], "kind": [1], "at": pa.array([0], pa.timestamp("us"))})
    rows = topology.source("rows", de.sources.Arrow(table, event_time="at"))
    first = rows.key_by("area").compute(lambda batch, state: batch, state={}, keeps=KEYS, name="first")
    first.key_by(*KEYS).window("1h", time="at").compute({"n": agg.Count()}, name="hourly")
    components = build_components(topology, fuse)
    summaries = tuple(
        ComponentSummary(component.name, component.kind, component.inputs, component.operators, 2, 4)
        for component in components
    )
    state = OperatorState("hourly", KEYS, 2, 4, (), routed_by=KEYS)
    manifest = Manifest("rides", 7, 1, 0.0, 0.0, FileRef("topology", 1, ""), states=(state,))
    if not refused:
        return _check_placing(components, summaries, manifest)
    with pytest.raises(
        SubmitError, match=r"'hourly' has windows .* by area, kind among 8 shards, and would be by area"
    ):
        _check_placing(components, summaries, manifest)


@pytest.mark.parametrize("executors", [2, 3])
def test_state_of_windows_in_key_groups_continues_with_any_number_of_executors(executors):
    topology = de.Topology("rides")
    table = pa.table({"area": ["n"], "at": pa.array([0], pa.timestamp("us"))})
    rows = topology.source("rows", de.sources.Arrow(table, event_time="at"))
    rows.key_by("area").window("1h", time="at").compute({"n": agg.Count()}, name="hourly")
    components = build_components(topology, False)
    summaries = tuple(
        ComponentSummary(component.name, component.kind, component.inputs, component.operators, executors, 4)
        for component in components
    )
    state = OperatorState("hourly", ("area",), 2, 4, (), owned=((0, 1), (2, 3)))
    manifest = Manifest("rides", 7, 1, 0.0, 0.0, FileRef("topology", 1, ""), states=(state,))
    _check_placing(components, summaries, manifest)

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from checkpointed import PLANES, Job, contents
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.regrouping import Regrouping
from dask_elastic.checkpoint.restore import restore_executor, state_batches
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state import KeyedStore
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError, UnknownOperator

PLANE = st.integers(0, 30).map("N{}".format)
CHANGES = st.dictionaries(PLANE, st.none() | st.integers(0, 1000), min_size=1, max_size=12)


def applied(before, changes):
    merged = before | changes
    return {plane: delay for plane, delay in merged.items() if delay is not None}


@settings(max_examples=30)
@given(st.lists(CHANGES, min_size=1, max_size=8), st.sampled_from([1, 2, 4, 8]), st.data())
def test_state_is_restored_to_any_number_of_executors(rounds, executors, data):
    folder = CheckpointFolder("memory://any")
    folder._files._filesystem.store.clear()
    job, truth = Job(folder, most=4), {}
    for changes in rounds:
        job.put(changes)
        truth = applied(truth, changes)
        manifest = job.checkpoint()
        if data.draw(st.booleans()):
            # Continues with the chains of the checkpoint.
            job = Job.restored(folder, manifest, data.draw(st.sampled_from([1, 2, 8])))
    assert job.contents() == truth
    restored = Job.restored(folder, manifest, executors)
    assert restored.contents() == truth
    restored.put({"N0": 7})
    again = Job.restored(folder, restored.checkpoint())
    assert again.contents() == applied(truth, {"N0": 7})


def test_each_key_is_in_the_executor_and_shard_where_routing_finds_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    job = Job(folder, executors=2, shards=8)
    job.put({f"N{i}": i for i in range(200)})
    manifest = job.checkpoint()
    job.put({f"N{i}": -i for i in range(50)})
    manifest = job.checkpoint()
    space = KeySpace(4, 4)
    for executor in range(4):
        for _, batch in state_batches(folder, manifest.state("planes"), executor, 4):
            if batch is not None:
                hashes = batch.column("__hash").to_numpy()
                assert set(space.executor_of(hashes)) <= {executor}
                assert batch.column("__shard").to_numpy().tolist() == space.shard_of(hashes).tolist()


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_every_group_belongs_to_one_executor_by_the_formula(executors, shards, data):
    total = executors * shards
    wanted = data.draw(st.integers(1, total))
    regrouping = Regrouping(executors, shards, wanted)
    for executor in range(wanted):
        own = [group for group in range(total) if group * wanted // total == executor]
        assert list(regrouping.groups(executor)) == own
        for source in range(executors):
            after = regrouping.shards_of(executor, source, np.arange(shards))
            groups = source * shards + np.arange(shards)
            assert [own[shard] for shard in after if shard >= 0] == [group for group in groups if group in own]
            assert (source in regrouping.sources(executor)) == bool((after >= 0).any())


def test_rows_that_a_later_full_copy_replaces_are_not_read_again(tmp_path):
    folder = CheckpointFolder(tmp_path)
    job = Job(folder, executors=1, shards=2)
    planes = {f"N{i}": i for i in range(40)}
    job.put(planes)
    job.checkpoint()
    shard = {plane for plane in planes if job.space.shard_of(_hash(plane))[0] == 0}
    job.put(dict.fromkeys(shard, 5))
    state = job.checkpoint().state("planes")
    assert [len(link.full) for link in state.chains[0].links] == [2, 1]
    rows = [batch.num_rows for _, batch in state_batches(folder, state, 0, 1) if batch is not None]
    assert sum(rows) == 40


def test_more_executors_than_groups_are_refused(tmp_path):
    folder = CheckpointFolder(tmp_path)
    state = Job(folder).checkpoint().state("planes")
    with pytest.raises(CheckpointError, match=r"state of 8 shards cannot be restored to 9 executors.* from 1 to 8"):
        restore_executor(folder, state, 0, 9, KeyedStore(1, lambda hashes: hashes * 0))


def test_file_of_another_executor_is_refused(tmp_path):
    folder = CheckpointFolder(tmp_path)
    job = Job(folder)
    job.put({f"N{i}": i for i in range(40)})
    state = job.checkpoint().state("planes")
    swapped = type(state)(state.name, state.keys, 2, 4, state.chains[::-1])
    store = KeyedStore(4, job.space.shard_of)
    with pytest.raises(CheckpointCorrupt, match=r"wanted state of 'planes', executor 0 of 2 .* got .* executor 1 of 2"):
        restore_executor(folder, swapped, 0, 2, store)
    assert contents([store]) == {}


@pytest.mark.parametrize("url", ["memory://read", None])
def test_state_is_read_as_values_without_a_job(url, tmp_path):
    url = url or tmp_path
    job = Job(CheckpointFolder(url))
    job.put({"a": 3, "b": 5, "c": 7})
    job.checkpoint()
    job.put({"a": None, "b": 50})
    job.checkpoint()
    rows = de.read_state(url, "planes").sort_by("plane").to_pylist()
    assert rows == [{"plane": "b", "flights": 1, "worst": 50}, {"plane": "c", "flights": 1, "worst": 7}]
    assert de.read_state(url, "planes", checkpoint=1).num_rows == 3
    with pytest.raises(UnknownOperator, match="no state of an operator 'trains'; operators with state: 'planes'"):
        de.read_state(url, "trains")


def test_state_before_the_first_row_is_an_empty_table(tmp_path):
    job = Job(CheckpointFolder(tmp_path))
    job.checkpoint()
    assert de.read_state(tmp_path, "planes").schema.names == ["plane", *PLANES.aggregates]
    assert de.read_state(tmp_path, "planes").num_rows == 0


def _hash(plane):
    from dask_elastic.routing.hashing import hash_columns

    return hash_columns(pa.record_batch({"plane": [plane]}), ("plane",))

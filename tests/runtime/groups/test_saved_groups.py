"""A job that continues from a checkpoint begins with the groups where they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.manifest_file import from_bytes, path_of, to_bytes
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.job_spec import RESOURCE, CheckpointPlan, JobSpec
from dask_elastic.runtime.scheduler.groups.saved_groups import with_saved_groups
from dask_elastic.vocab.errors import CheckpointError

OWNED = ((2, 3), (0, 1))


def manifest(owned=OWNED, shards=4, topology=None):
    """A checkpoint with the state of an operator."""
    chains = (Chain(shards),) * 2
    state = OperatorState("op", ("k",), 2, shards, chains, owned=owned, parted_by=shards)
    topology = topology or FileRef("topology/1.pickle", 9, "crc32:0")
    return Manifest("job", 1, 1, 0.0, 0.5, topology, states=(state,))


def spec(folder, number=1, groups=(0, 0, 1, 1)):
    """A job with two executors of an operator, and one of an operator that the checkpoint lacks."""
    return JobSpec(
        "job", 2, ("a",), 0, (), {"op": (0, 0), "new": (0, 0)}, {}, job_options({"paradigm": RESOURCE}),
        checkpoint=CheckpointPlan(folder.url, number), groups={"op": groups, "new": (0, 1)},
    )  # fmt: skip


def saved(tmp_path, *state):
    folder = CheckpointFolder(tmp_path)
    made = manifest(*state, topology=folder.write("topology/1.pickle", [b"topology"]))
    folder.write(path_of(1), [to_bytes(made)])
    assert Catalog(folder).load(1).states == made.states
    return folder


def test_manifest_keeps_the_groups_of_each_executor():
    assert from_bytes(to_bytes(manifest()), "1.json", 1).state("op").owned == OWNED
    assert from_bytes(to_bytes(manifest(())), "1.json", 1).state("op").owned == ()


def test_owners_of_the_checkpoint_replace_those_of_a_start_without_state(tmp_path):
    given = spec(saved(tmp_path, OWNED))
    assert with_saved_groups(given).groups == {"op": (1, 1, 0, 0), "new": (0, 1)}


def test_groups_are_spread_over_another_number_of_executors(tmp_path):
    folder = saved(tmp_path, OWNED)
    for homes, owners in (((0,), (0, 0, 0, 0)), ((0, 0, 0), (1, 2, 0, 0)), ((0,) * 4, (1, 2, 0, 3))):
        given = spec(folder, groups=(0, 0, 1, 1))
        given = replace(given, homes={**given.homes, "op": homes})
        assert with_saved_groups(given).groups == {"op": owners, "new": (0, 1)}


def test_job_without_a_checkpoint_or_without_groups_is_left_as_it_is(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for given in (spec(folder, number=0), replace(spec(folder), groups={}), replace(spec(folder), checkpoint=None)):
        assert with_saved_groups(given) is given


@pytest.mark.parametrize(("owned", "shards"), [((), 4), (OWNED, 8)])
def test_state_without_owners_or_with_other_groups_is_refused(tmp_path, owned, shards):
    with pytest.raises(CheckpointError, match=r"'op' has . shards in each of 2 executors.*cannot continue"):
        with_saved_groups(spec(saved(tmp_path, owned, shards)))

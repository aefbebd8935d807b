"""State of key groups continues with other numbers of executors, unless its keys would be in other groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.runtime.client.resume import _check_groups, _fitted
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE, ComponentSummary, ComputeSummary
from dask_elastic.vocab.errors import SubmitError

KEYS = ("area", "kind")


def manifest(routed_by=(), parted_by=4):
    """A checkpoint of two executors with four key groups."""
    owned = ((0, 1), (2, 3))
    state = OperatorState("op", KEYS, 2, 4, (Chain(4),) * 2, routed_by=routed_by, owned=owned, parted_by=parted_by)
    return Manifest("job", 3, 1, 0.0, 0.5, FileRef("topology/1.pickle", 9, "crc32:0"), states=(state,))


def summary(executors=None, shards=256, routed_by=()):
    return ComponentSummary("op", "compute", ("rows",), ("op",), executors, shards, keys=KEYS, routed_by=routed_by)


@pytest.mark.parametrize("executors", [None, 1, 2, 3, 4])
def test_any_number_of_executors_up_to_that_of_the_groups_continues(executors):
    fitted = _fitted(summary(executors), manifest())
    assert (fitted.instances, fitted.shards) == (executors or 2, 4)
    _check_groups((fitted,), manifest(), RESOURCE)


@pytest.mark.parametrize(
    ("executors", "before", "now", "message"),
    [
        (
            5,
            (),
            (),
            r"'op' cannot continue with 5 executors: its state in checkpoint 3 has 4 key groups\..* from 1 to 4",
        ),
        (2, (), ("area",), "'op': the key groups of checkpoint 3 are by area, kind, and would be by area"),
        (2, ("area",), (), "'op': the key groups of checkpoint 3 are by area, and would be by area, kind"),
    ],
)
def test_state_that_would_be_in_other_groups_is_refused(executors, before, now, message):
    found = manifest(before)
    with pytest.raises(SubmitError, match=message):
        _check_groups((_fitted(summary(executors, routed_by=now), found),), found, RESOURCE)


@pytest.mark.parametrize("executors", [1, 2, 3])
def test_groups_by_some_of_the_keys_continue_with_any_number_of_executors(executors):
    found = manifest(("area",))
    _check_groups((_fitted(summary(executors, routed_by=("area",)), found),), found, RESOURCE)


def test_state_that_depended_on_the_number_of_executors_is_refused():
    with pytest.raises(SubmitError, match=r"'op': checkpoint 3 was written by a version .* pass drop=\['op'\]"):
        _check_groups((_fitted(summary(2), manifest(parted_by=0)),), manifest(parted_by=0), RESOURCE)


@pytest.mark.parametrize("shards", [4, 6])
def test_computes_that_ran_apart_are_fused_if_they_have_equally_many_groups(shards):
    apart = OperatorState("other", KEYS, 1, shards, (Chain(shards),), owned=(tuple(range(shards)),), parted_by=shards)
    found = replace(manifest(), states=(*manifest().states, apart))
    fused = _fitted(replace(summary(), fused=(ComputeSummary("other", KEYS),)), found)
    if shards == 4:
        _check_groups((fused,), found, RESOURCE)
    else:
        with pytest.raises(SubmitError, match=r"'other' has 6 key groups in checkpoint 3, and would have 4 in .* 'op'"):
            _check_groups((fused,), found, RESOURCE)


def test_groups_do_not_continue_in_another_paradigm():
    with pytest.raises(SubmitError, match="has the state of 'op' as key groups that move"):
        _check_groups((_fitted(summary(), manifest()),), manifest(), ELASTIC)

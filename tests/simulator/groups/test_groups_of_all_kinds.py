"""Key groups move in jobs with windows, sessions, joins and fused computes: results are as if none had moved."""

from __future__ import annotations

from collections import Counter

import pytest
from merged_group_scenario import MERGED_KINDS, UpdatedGroups

from dask_elastic.executor.windows.updated_instances import UpdatedInstances

SEEDS = 9
"""Of each kind of scenario; as many as there are kinds of windows."""


@pytest.mark.parametrize("kind", MERGED_KINDS, ids=lambda kind: kind.__name__)
def test_groups_move_whatever_their_executors_hold(kind):
    seen = Counter()
    for seed in range(SEEDS):
        seen += kind(seed, outages=0.0).run().world.groups.happened
    assert seen["progressive arrived"] > SEEDS / 3
    assert seen["synchronised arrived"] > 0


@pytest.mark.parametrize("windowing", range(3))
def test_updates_are_of_instances_since_no_change_follows_the_load(windowing, monkeypatch):
    slices = []
    monkeypatch.setattr(UpdatedInstances, "write", lambda self, bound, writes, reached: slices.extend(writes) or [])
    scenario = UpdatedGroups(windowing, outages=0.0)
    assert scenario.windowing.shares
    scenario.run()
    assert not slices

"""Key groups move in jobs with windows, sessions, joins and fused computes: results are as if none had moved."""

from __future__ import annotations

from collections import Counter

import pytest
from merged_group_scenario import MERGED_KINDS, JoinGroups, UpdatedGroups

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


def test_job_continues_on_other_executors_from_a_checkpoint_in_which_event_times_differ():
    """One executor has got the event time of an input while the other one was idle, another executor afterwards."""
    world = JoinGroups(3_000_034, outages=0.0).run().world
    cuts = [checkpoint.executors.values() for checkpoint in world.checkpoints.complete if checkpoint.number % 2]
    assert any(len({cut.event_time for cut in executors}) > 1 for executors in cuts)


@pytest.mark.parametrize("windowing", range(3))
def test_updates_are_of_instances_since_no_change_follows_the_load(windowing, monkeypatch):
    slices = []
    monkeypatch.setattr(UpdatedInstances, "write", lambda self, bound, writes, reached: slices.extend(writes) or [])
    scenario = UpdatedGroups(windowing, outages=0.0)
    assert scenario.windowing.shares
    scenario.run()
    assert not slices

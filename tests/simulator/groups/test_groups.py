"""Key groups that move: rows, state, event time and timers are as if none had moved."""

from __future__ import annotations

from collections import Counter

import pytest
from group_scenario import KINDS, GroupScenario

from dask_elastic.vocab.errors import MoveRefused, PlanningError

SEEDS = 12
"""Of each kind of scenario."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_groups_move_under_checkpoints_watermarks_and_timers(kind):
    seen = Counter()
    for seed in range(SEEDS):
        scenario = kind(seed, outages=0.0, pauses=0.05 if seed % 4 < 2 else 0.0)
        seen += scenario.run().world.groups.happened
    assert seen["progressive arrived"] > SEEDS / 2
    assert seen["synchronised arrived"] > SEEDS / 10


def test_homes_of_executors_whose_groups_move_do_not_move():
    world = GroupScenario(0).build().world
    for executor in world.homes:
        with pytest.raises(MoveRefused, match=r"the key groups of per_\w+\[\d\] move between executors"):
            world.moves.request(executor, (world.node_of(executor) + 1) % world.placement.nodes)


def test_move_that_is_refused_gives_no_checkpoint_up():
    groups, given_up = GroupScenario(0).build().world.groups, []
    groups.begins = lambda: given_up.append(True)
    moves = {0: 1 - int(groups.table("per_key").owners[0])}
    with pytest.raises(PlanningError, match="most_groups=0"):
        groups.request("per_key", moves, most_groups=0)
    assert not given_up
    assert groups.current is None

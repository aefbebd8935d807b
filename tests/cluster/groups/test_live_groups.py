"""Planners of placements move key groups of running jobs; the state is that of one process."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from slow_jobs import Load, expected, planning_pair, slow_chain, slow_topology, state_of

import dask_elastic as de
from dask_elastic.vocab.errors import SubmitError

EXECUTORS, GROUPS = 4, 16


def owners(job, operator="slow"):
    """The executor of each key group."""
    found = job.assignment()
    found = found[found["operator"] == operator]
    pairs = ((group, one) for one, own in zip(found["executor"], found["shards"], strict=True) for group in own)
    return dict(pairs)


def keys_of_groups(groups, count=4):
    """Keys of some groups."""
    from dask_elastic.routing.hashing import hash_columns

    keys = np.arange(400)
    hashes = hash_columns(pa.record_batch({"key": pa.array(keys)}), ["key"])
    return [int(key) for group in groups for key in keys[hashes % GROUPS == group][:count]]


@pytest.fixture(scope="module")
def pair():
    """A client of two worker processes."""
    with planning_pair() as client:
        yield client


@pytest.mark.parametrize(
    ("placement", "migration", "made"),
    [
        ("flux", "auto", "(?:progressive|synchronised)"),
        ("eager", "synchronised", "synchronised"),
        ("milp", "progressive", "progressive"),
        ("correlation", "progressive", "progressive"),
    ],
)
def test_planner_moves_groups_away_from_a_loaded_executor_and_state_is_exact(
    pair, wait_until, placement, migration, made
):
    if placement == "milp":
        pytest.importorskip("highspy")
    options = {"placement": placement, "paradigm": "resource-centric", "migration": migration}
    job = de.submit(slow_topology(f"groups-{placement}", EXECUTORS), pair, **options)
    before = owners(job)
    busy = [group for group, one in before.items() if one == 0]
    with Load(job, keys_of_groups(busy)) as load:
        wait_until(lambda: len({owners(job)[group] for group in busy}) > 1, "some groups have moved")

        def noted():
            reasons = job.decisions()["reason"]
            return [*reasons[reasons.str.contains(f"Placement '{placement}'.*have moved [(]{made}[)]")]]

        moved = pd.Series(wait_until(noted, "the move is noted"))
        assert job.plan(dry_run=True).groups.placement == placement

        def recorded():
            [newest] = [one for one in job.snapshots(last=1)[0].jobs if one.name == job.name]
            return newest if newest.group_moves else None

        newest = wait_until(recorded, "a snapshot has the move")
        assert newest.strategies == {"slow": migration}
        assert all(re.fullmatch(made, move.strategy) and move.pause > 0 for move in newest.group_moves)
    job.end_of_input()
    job.wait(progress=False)
    assert state_of(job) == expected(load.sent)
    assert moved.str.contains(r"Rows wait for \S+ row-seconds if .*, \S+ if ").all()


def workers(job, operator):
    """The worker of each key group."""
    placed = job.assignment()
    homes = placed[placed["operator"] == operator].set_index("executor")["home"]
    return {group: homes[executor] for group, executor in owners(job, operator).items()}


@pytest.mark.parametrize("placement", ["albic", "cola"])
def test_planner_brings_groups_to_the_worker_of_those_that_they_communicate_with(pair, wait_until, placement):
    pytest.importorskip("highspy")
    pytest.importorskip("pymetis")
    options = {"placement": placement, "paradigm": "resource-centric", "migration": "progressive", "name": placement}
    job = de.submit(slow_chain("chain", executors=2), pair, **options)
    busy = [*range(0, GROUPS, 2)]

    def apart():
        ahead, behind = workers(job, "ahead"), workers(job, "behind")
        return [group for group in busy if ahead[group] != behind[group]]

    # Executors stay loaded evenly if groups are exchanged.
    before = owners(job, "behind")
    exchanged = [next(group for group in busy if before[group] == one) for one in (0, 1)]
    for group in exchanged:
        job.move_groups("behind", [group], 1 - before[group])
    with Load(job, keys_of_groups(busy)) as load:
        wait_until(lambda: not apart(), "groups that communicate are on one worker")

        def explained():
            text = str(job.explain())
            local = "ahead → behind: 100 % of" in text and ", same worker" in text
            return local and re.search(r"moved .* ago, decision #", text)

        wait_until(explained, "the explanation says that their traffic stays on their worker")
    job.end_of_input()
    job.wait(progress=False)
    ended = str(job.explain())
    assert "finished: no decision follows; its last measurements are explained" in ended
    assert "next decision: " not in ended
    assert "finished: no decision follows; its last measurements suggest this one" in str(job.plan())
    assert "; in this job its key groups move, progressively or synchronised" in ended
    for operator in ("ahead", "behind"):
        assert state_of(job, operator) == expected(load.sent)
    reasons = job.decisions()["reason"]
    assert reasons.str.contains(rf"Placement '{placement}'.*Traffic within workers \d+%, 100% afterwards.").any()


def test_placements_of_consecutive_groups_are_refused(pair):
    with pytest.raises(SubmitError, match="placement='ssm' gives each node consecutive executors"):
        de.submit(slow_topology("consecutive", EXECUTORS), pair, placement="ssm", paradigm="resource-centric")

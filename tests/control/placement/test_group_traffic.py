"""Traffic between key groups in placement problems: what stays within nodes, and what planners make of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.placement import groups
from dask_elastic.control.placement.group_traffic import node_traffic
from dask_elastic.control.placement.groups import GroupPlanning
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import collocation
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
KEY = ("words", 1)
HOMES = [0, 1, 0, 1]
"""The nodes of the executors of each operator."""


def executors_of(owners, pairs, loads=None):
    """Executors of two operators whose groups send from the first to the second, given as (source, target, rate)."""
    found = []
    for name, of in owners.items():
        for index, home in enumerate(HOMES):
            here = np.array(of) == index
            flows = ()
            if name == "ahead":
                mine = [pair for pair in pairs if of[pair[0]] == index]
                source, target, rate = zip(*mine, strict=True) if mine else ((), (), ())
                flows = (GroupFlow("behind", np.array(source, int), np.array(target, int), np.array(rate, float)),)
            load = np.where(here, 0.1 if loads is None else loads, 0.0)
            given = {"shard_load": load, "shard_bytes": np.where(here, 10.0, 0.0), "flows": flows}
            found.append(ExecutorSnapshot(ExecutorId(name, index), home, {home: 1}, 1.0, 100.0, **given))
    return tuple(found)


groups_of = st.lists(st.integers(0, len(HOMES) - 1), min_size=6, max_size=6)


@given(
    groups_of,
    groups_of,
    groups_of,
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(1.0, 1e6)), max_size=20),
)
def test_share_within_nodes_is_that_of_the_pairs_whatever_is_planned(ahead, behind, planned, pairs):
    owners = {"ahead": np.array(ahead), "behind": np.array(behind)}
    executors, homes = executors_of(owners, pairs), np.array(HOMES)
    whole = sum(rate for *_, rate in pairs)
    for operator in owners:
        traffic = node_traffic(executors, operator, owners, len(NODES))
        places = {**owners, operator: np.array(planned)}
        inside = sum(rate for s, t, rate in pairs if homes[places["ahead"][s]] == homes[places["behind"][t]])
        assert traffic.within(np.array(planned)) == pytest.approx(inside / whole if whole else 1.0)
        problem = traffic.added_to(PlacementProblem(np.ones(6), owners[operator], len(HOMES)))
        # Each byte counts for both executors of a node: half of it can be within one.
        anchored = np.concatenate([planned, np.arange(len(HOMES))])
        assert whole == 0 or collocation(problem, anchored) == pytest.approx(inside / whole / 2)
        assert problem.pinned.tolist() == [False] * 6 + [True] * len(HOMES)


def test_traffic_to_all_other_groups_counts_on_every_node_that_has_some():
    owners = {"ahead": np.array([0, 0, 1, 1]), "behind": np.array([0, 0, 0, 1])}
    executors = executors_of(owners, [(0, OTHERS, 8.0)])
    assert node_traffic(executors, "ahead", owners, 2).sent[0].tolist() == [6.0, 2.0]
    assert node_traffic(executors, "behind", owners, 2).received.tolist() == [[2.0, 0.0]] * 4


def planned(planning, owners, pairs, placement, now=0.0, **given):
    """Return the decisions of one period."""
    job = JobSnapshot(*KEY, executors_of(owners, pairs, **given), placement=placement, paradigm="resource-centric")
    planning.observe(Snapshot(now, NODES, (job,)))
    return planning.decide({KEY: {name: list(of) for name, of in owners.items()}})


def moved(owners, decisions):
    placed = {name: list(of) for name, of in owners.items()}
    for decision in decisions:
        for mini in decision.moves:
            for group, executor in mini.items():
                placed[decision.operator][group] = executor
    return placed


@pytest.mark.parametrize("placement", ["albic", "cola"])
@pytest.mark.parametrize("seed", range(3))
def test_planners_that_read_traffic_collocate_groups_from_round_to_round(placement, seed):
    pytest.importorskip("highspy")
    pytest.importorskip("pymetis")
    random = np.random.default_rng(seed)
    count = 32
    partner = random.permutation(count)
    pairs = [(group, int(partner[group]), 1e5) for group in range(count)]
    even = np.arange(count) % len(HOMES)
    owners = {"ahead": even, "behind": random.permutation(even)}
    planning = GroupPlanning(PlacementSettings(patience=1, cooldown=0.0))
    shares = []
    for turn in range(40):
        found = planned(planning, owners, pairs, placement, now=10.0 * turn)
        owners = moved(owners, found)
        traffic = node_traffic(executors_of(owners, pairs), "ahead", {n: np.array(o) for n, o in owners.items()}, 2)
        shares.append(traffic.within(np.array(owners["ahead"])))
        if not any(decision.moves for decision in found):
            break
    assert shares[-1] > 0.9
    assert shares == sorted(shares)
    for of in owners.values():
        assert np.bincount(of, minlength=len(HOMES)).max() <= 10


class Nearest:
    """A planner that puts each group where most of its traffic is."""

    def plan(self, problem, seed=0):
        both = (problem.traffic + problem.traffic.T).toarray()
        movable = np.flatnonzero(~problem.pinned)
        bin = problem.current.copy()
        bin[movable] = problem.current[problem.pinned][both[np.ix_(movable, np.flatnonzero(problem.pinned))].argmax(1)]
        return problem.placement(bin)


def test_groups_of_two_operators_do_not_change_places(monkeypatch):
    """The second operator is planned for where the groups of the first will be."""
    monkeypatch.setattr(groups, "home_planner", lambda placement: Nearest())
    owners = {"ahead": [0, 1, 2, 3], "behind": [1, 0, 3, 2]}
    pairs = [(group, group, 1e5) for group in range(4)]
    planning = GroupPlanning(PlacementSettings(patience=1, cooldown=0.0))
    first, second = planned(planning, owners, pairs, "albic")
    assert (bool(first.moves), second.moves) == (True, ())
    after = moved(owners, [first, second])
    assert all(HOMES[after["ahead"][group]] == HOMES[after["behind"][group]] for group in range(4))
    assert (first.collocation, first.planned_collocation, second.collocation) == (0.0, 1.0, 1.0)


def test_planners_of_balance_do_not_read_traffic():
    owners = {"ahead": [0, 1, 2, 3], "behind": [1, 0, 3, 2]}
    planning = GroupPlanning(PlacementSettings(patience=1))
    for decision in planned(planning, owners, [(0, 0, 1e5)], "flux"):
        assert (decision.moves, decision.collocation) == ((), 1.0)

"""What is shown of key groups is what planners are given, and explanations name the groups that communicate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.explanation.evidence import Evidence
from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.control.placement.group_traffic import node_traffic
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

NODES = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
HOMES = [0, 1, 1]
"""The nodes of the executors of each operator."""
GROUPS = 6


def job_of(owners, pairs, placement="albic"):
    """A job with these owners of groups by operator, whose first operator sends (source, target, rate) to the next."""
    executors = []
    for name, of in owners.items():
        for index, home in enumerate(HOMES):
            here = np.array(of) == index
            mine = [pair for pair in pairs if name == "ahead" and of[pair[0]] == index]
            source, target, rate = zip(*mine, strict=True) if mine else ((), (), ())
            flow = GroupFlow("behind", np.array(source, int), np.array(target, int), np.array(rate, float))
            known = {
                "groups": np.flatnonzero(here),
                "shard_load": np.where(here, [0.01 * group for group in range(len(of))], 0.0),
                "shard_bytes": np.where(here, 1024.0, 0.0),
                "flows": (flow,) if mine else (),
            }
            executors.append(ExecutorSnapshot(ExecutorId(name, index), home, {home: 1}, 9.0, 100.0, **known))
    return JobSnapshot("words", 1, tuple(executors), placement=placement, paradigm="resource-centric")


owned = st.lists(st.integers(0, len(HOMES) - 1), min_size=GROUPS, max_size=GROUPS)
targets = st.integers(0, GROUPS - 1) | st.just(OTHERS)


@given(owned, owned, st.lists(st.tuples(st.integers(0, GROUPS - 1), targets, st.floats(1.0, 1e6)), max_size=20))
def test_traffic_by_group_and_node_is_that_of_the_planners(ahead, behind, pairs):
    owners = {"ahead": np.array(ahead), "behind": np.array(behind)}
    job = job_of(owners, pairs)
    found = GroupMap.of(job)
    for name, of in owners.items():
        assert found.operators[name].owner.tolist() == of.tolist()
        given_to_planners = node_traffic(job.executors, name, owners, len(NODES))
        both = given_to_planners.sent + given_to_planners.received
        by_node = np.array([found.by_node(name, group) for group in range(GROUPS)])
        np.testing.assert_allclose(by_node, both[:, : found.nodes], atol=1e-6)
        total, within = found.exchanged(name)
        np.testing.assert_allclose(total, both.sum(axis=1), atol=1e-6)
        np.testing.assert_allclose(within, both[np.arange(GROUPS), np.array(HOMES)[of]], atol=1e-6)
        assert found.share_within == pytest.approx(given_to_planners.within(of))
    assert found.total == pytest.approx(sum(rate for *_, rate in pairs))
    named = sorted((rate for _, target, rate in pairs if target != OTHERS), reverse=True)
    assert [pair.rate for pair in found.heaviest(3)] == named[:3]


def test_job_whose_groups_do_not_move_or_are_not_all_known_has_no_map():
    fixed = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 1}, 1.0, 2.0)
    part = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 1}, 1.0, 2.0, groups=np.array([1, 2]))
    for executor in (fixed, part):
        assert GroupMap.of(JobSnapshot("j", 1, (executor,))).operators == {}


def explained(pairs, decisions=(), operator=None, **given):
    job = job_of({"ahead": [0, 0, 1, 1, 2, 2], "behind": [0, 1, 1, 1, 2, 2]}, pairs, **given)
    return Evidence("words", [], Snapshot(9.0, NODES, (job,)), ControlSettings(), decisions).explanation(operator)


def test_explanation_names_load_state_and_traffic_of_groups():
    found = explained([(1, 1, 3 * 2.0**20), (1, 0, 2.0**20), (4, 4, 2.0**20), (5, OTHERS, 6.0 * 2**20)])
    assert found.executors[0].groups == (
        "2 of 6 groups; arriving rows keep 0.01 cores busy; 2.0 kiB of state",
        "25 % of 4.0 MiB/s stay on their worker",
        "group 1: 0.01 busy cores, 1.0 kiB of state; 25 % of 4.0 MiB/s with groups on its worker, 75 % on tcp://b:1; "
        "most, 3.0 MiB/s, with group 1 of behind, another worker",
        "group 0: 0.00 busy cores, 1.0 kiB of state",
    )
    assert found.sections["key groups"].splitlines() == [
        "placement 'albic' moves them for balance and for less traffic between workers",
        # Five of the six groups are on the worker of group 5.
        "ahead → behind: 64 % of 11.0 MiB/s stay on their worker",
        "  group 1 of ahead[0] on tcp://a:1 → group 1 of behind[1] on tcp://b:1: 3.0 MiB/s, another worker",
        "  group 1 of ahead[0] on tcp://a:1 → group 0 of behind[0] on tcp://a:1: 1.0 MiB/s, same worker",
        "  group 4 of ahead[2] on tcp://b:1 → group 4 of behind[2] on tcp://b:1: 1.0 MiB/s, same worker",
    ]
    assert "key groups:        2 of 6 groups" in str(found)
    assert found.to_pandas()["groups"][0] == [*found.executors[0].groups]


def test_explanation_says_when_and_why_groups_moved_last():
    made = [
        {"number": 1, "time": 1.0, "reason": "'behind': Placement 'flux': even.", "changes": [], "applied": False},
        {"number": 2, "time": 4.0, "reason": "so.", "others": ["2 key groups of 'ahead' moved"], "changes": []},
        {"number": 3, "time": 7.0, "reason": "'ahead': Placement 'flux': even.", "changes": [], "applied": False},
    ]
    lines = explained([], made, placement="flux").sections["key groups"].splitlines()
    assert lines == [
        "placement 'flux' moves them for balance",
        "no traffic with groups of other operators has been sampled",
        "decided 2 s ago: 'ahead': Placement 'flux': even.",
        "moved 5 s ago, decision #2: so.",
        "decided 8 s ago: 'behind': Placement 'flux': even.",
    ]
    one = explained([], made, operator="behind", placement="spread").sections["key groups"].splitlines()
    assert one[0].startswith("no planner moves them")
    assert one[2:] == ["decided 8 s ago: 'behind': Placement 'flux': even."]

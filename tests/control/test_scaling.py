from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.scaling import Scaling, TargetUtilisation
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError

NOW = TargetUtilisation(patience=1)


def decide(policy, problem, bin=None, marked=(), last=None):
    mask = np.zeros(problem.bins, dtype=bool)
    mask[[*marked]] = True
    plan = problem.placement(problem.current if bin is None else np.array(bin))
    return policy.decide(problem, plan, mask, last or Scaling())


def test_between_the_bounds_nothing_happens():
    for load in (0.5, 0.6, 0.7, 0.85):
        problem = PlacementProblem([load * 10] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
        assert not decide(NOW, problem).changes


def test_above_the_upper_bound_nodes_come_until_the_target_is_met():
    problem = PlacementProblem([9] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    # 36 of 0.7 are 51.4: six nodes.
    assert decide(NOW, problem) == Scaling(add=2)


def test_below_the_lower_bound_nodes_go_as_far_as_the_target_allows():
    problem = PlacementProblem([1] * 16, np.arange(16) % 8, 8, capacity=[10] * 8, state_bytes=np.arange(16)[::-1])
    # 16 of 0.7 are 22.9: three nodes stay, those with most state, which are the first.
    assert decide(NOW, problem) == Scaling(remove=(3, 4, 5, 6, 7))


def test_nodes_go_only_after_some_quiet_periods():
    problem = PlacementProblem([1] * 8, np.arange(8) % 4, 4, capacity=[10] * 4)
    policy, last = TargetUtilisation(patience=3), Scaling()
    said = []
    for _ in range(3):
        last = decide(policy, problem, last=last)
        said.append(len(last.remove))
    assert said == [0, 0, 2]
    assert last.quiet == 0


def test_a_busy_period_ends_the_quiet():
    quiet = PlacementProblem([1] * 8, np.arange(8) % 4, 4, capacity=[10] * 4)
    busy = replace(quiet, load=np.full(8, 3.0))
    policy, last = TargetUtilisation(patience=2), Scaling()
    for problem in (quiet, busy, quiet):
        last = decide(policy, problem, last=last)
        assert not last.changes
    assert decide(policy, quiet, last=last).remove


def test_what_the_plan_solves_needs_no_node():
    # Bin 0 has 120 % of its capacity; the plan gives a part of it away.
    problem = PlacementProblem([4, 4, 4, 2, 2], [0, 0, 0, 1, 2], 3, capacity=[10] * 3)
    assert not decide(NOW, problem, bin=[0, 0, 1, 1, 2]).changes
    # Nor does what a plan without a budget would solve, in later periods.
    assert not decide(NOW, replace(problem, max_moves=0)).changes


def test_a_hot_node_of_several_groups_asks_for_one_node():
    problem = PlacementProblem([6] * 5, [0, 0, 1, 2, 3], 4, capacity=[10] * 4)
    assert decide(NOW, problem) == Scaling(add=1)


def test_a_group_that_fills_a_node_asks_for_none():
    problem = PlacementProblem([15, 4, 4], [0, 1, 2], 3, capacity=[10] * 3)
    assert not decide(NOW, problem).changes


def test_collocation_spares_nodes():
    traffic = np.zeros((4, 4))
    traffic[0, 1] = traffic[2, 3] = 5
    problem = PlacementProblem([9] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4, traffic=traffic)
    together = [0, 0, 2, 2]
    assert decide(NOW, problem, bin=together).add == 2
    # Half of the load is communication, and the plan spares all of it.
    spared = decide(TargetUtilisation(patience=1, communication=1.0), problem, bin=together)
    assert spared.add == 0
    assert spared.remove == ()


def test_no_node_goes_whose_load_the_others_could_not_balance():
    # Two of three nodes could bear 65 % of their capacity, but one of them would have 87 %.
    problem = PlacementProblem([26] * 3, [0, 1, 2], 3, capacity=[60] * 3)
    assert not decide(NOW, problem).changes
    fine = PlacementProblem([13] * 6, [0, 0, 1, 1, 2, 2], 3, capacity=[60] * 3)
    assert len(decide(NOW, fine).remove) == 1


def test_idle_nodes_go_whatever_one_group_fills():
    problem = PlacementProblem([9, 1], [0, 1], 6, capacity=[10] * 6)
    assert decide(NOW, problem).remove == (2, 3, 4, 5)


def test_nodes_that_were_to_go_are_taken_back_first():
    problem = PlacementProblem(
        [9, 9, 9, 9], [0, 1, 2, 3], 4, capacity=[10] * 4, draining=[2, 3], state_bytes=[1, 1, 1, 2]
    )
    # Six nodes are needed, of which two are there and two come back.
    assert decide(NOW, problem, marked=[2, 3]) == Scaling(add=2, keep=(2, 3))
    # What somebody else drains is not taken back.
    assert decide(NOW, problem, marked=[3]) == Scaling(add=3, keep=(3,))
    little = replace(problem, load=np.array([9.0, 9, 1, 1]))
    assert decide(NOW, little, marked=[2, 3]) == Scaling(keep=(3,))


def test_there_are_never_more_than_most_nor_fewer_than_least():
    full = PlacementProblem([30] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    assert decide(TargetUtilisation(most=5), full) == Scaling(add=1)
    at_most = decide(TargetUtilisation(most=4), full)
    assert at_most == Scaling()
    assert "no more than 4 nodes" in at_most.reason
    idle = PlacementProblem([0] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    assert len(decide(TargetUtilisation(patience=1, least=3), idle).remove) == 1


def test_the_resource_used_most_decides():
    problem = PlacementProblem([[1, 9], [1, 9]], [0, 1], 2, capacity=[[10, 10], [10, 10]])
    assert decide(NOW, problem) == Scaling(add=1)


def test_strong_nodes_count_for_more():
    problem = PlacementProblem([1] * 30, [0] * 10 + [1] * 20, 2, capacity=[10, 20])
    # 30 of 0.7 are 42.9: 12.9 more, of nodes of 15.
    assert decide(NOW, problem) == Scaling(add=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_what_is_decided_is_not_undone(seed):
    """After nodes went or came, the same load asks for nothing more."""
    random = np.random.default_rng(seed)
    bins = int(random.integers(2, 9))
    groups = bins * int(random.integers(3, 9))
    load = random.uniform(0.5, 1.5, groups) * random.uniform(0.1, 1.2) * 10 * bins / groups
    problem = PlacementProblem(load, random.integers(0, bins, groups), bins, capacity=[10.0] * bins)
    problem = replace(problem, current=Flux().plan(problem).bin)
    first = decide(NOW, problem)
    draining = problem.draining.copy()
    draining[[*first.remove]] = True
    after = PlacementProblem(
        load,
        problem.current,
        bins + first.add,
        capacity=[10.0] * (bins + first.add),
        draining=np.append(draining, np.zeros(first.add, dtype=bool)),
    )
    settled = Flux().plan(after).bin
    assert not decide(NOW, replace(after, current=settled), marked=np.flatnonzero(after.draining)).changes


def test_capacities_are_asked_for():
    with pytest.raises(PlanningError, match="capacity is None"):
        decide(NOW, PlacementProblem([1], [0], 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lower": 0.8}, "lower, target and upper are 0.8, 0.7 and 0.85"),
        ({"upper": 1.2}, "lower, target and upper are 0.5, 0.7 and 1.2"),
        ({"patience": 0}, "patience is 0"),
        ({"least": 0}, "least 0"),
        ({"least": 4, "most": 3}, "most is 3: give 4 or more"),
        ({"communication": -1.0}, "communication is -1.0"),
        ({"communication": float("nan")}, "communication is nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(PlanningError, match=message):
        TargetUtilisation(**options)


def test_a_bin_cannot_come_and_go():
    with pytest.raises(PlanningError, match="name each bin once"):
        Scaling(remove=(1,), keep=(1,))
    with pytest.raises(PlanningError, match="add is -1"):
        Scaling(add=-1)

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


def test_policy_between_bounds_changes_nothing():
    for load in (0.5, 0.6, 0.7, 0.85):
        problem = PlacementProblem([load * 10] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
        assert not decide(NOW, problem).changes


def test_policy_above_upper_bound_adds_nodes_until_target_is_met():
    problem = PlacementProblem([9] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    # 36 / 0.7 = 51.4, which takes six nodes.
    assert decide(NOW, problem) == Scaling(add=2)


def test_policy_below_lower_bound_removes_nodes_as_target_allows():
    problem = PlacementProblem([1] * 16, np.arange(16) % 8, 8, capacity=[10] * 8, state_bytes=np.arange(16)[::-1])
    # 16 / 0.7 = 22.9, which takes three nodes: the first ones, which have most state.
    assert decide(NOW, problem) == Scaling(remove=(3, 4, 5, 6, 7))


def test_policy_removes_nodes_only_after_quiet_periods():
    problem = PlacementProblem([1] * 8, np.arange(8) % 4, 4, capacity=[10] * 4)
    policy, last = TargetUtilisation(patience=3), Scaling()
    removed = []
    for _ in range(3):
        last = decide(policy, problem, last=last)
        removed.append(len(last.remove))
    assert removed == [0, 0, 2]
    assert last.quiet == 0


def test_policy_busy_period_restarts_patience():
    quiet = PlacementProblem([1] * 8, np.arange(8) % 4, 4, capacity=[10] * 4)
    busy = replace(quiet, load=np.full(8, 3.0))
    policy, last = TargetUtilisation(patience=2), Scaling()
    for problem in (quiet, busy, quiet):
        last = decide(policy, problem, last=last)
        assert not last.changes
    assert decide(policy, quiet, last=last).remove


def test_policy_adds_no_node_if_plan_balances_load():
    # Bin 0 is at 120 % of its capacity; the plan moves a part of its load.
    problem = PlacementProblem([4, 4, 4, 2, 2], [0, 0, 0, 1, 2], 3, capacity=[10] * 3)
    assert not decide(NOW, problem, bin=[0, 0, 1, 1, 2]).changes
    # The same holds if only a plan without a budget, over several periods, balances the load.
    assert not decide(NOW, replace(problem, max_moves=0)).changes


def test_policy_adds_one_node_for_hot_node_with_several_groups():
    problem = PlacementProblem([6] * 5, [0, 0, 1, 2, 3], 4, capacity=[10] * 4)
    assert decide(NOW, problem) == Scaling(add=1)


def test_policy_adds_no_node_for_single_group_above_capacity():
    problem = PlacementProblem([15, 4, 4], [0, 1, 2], 3, capacity=[10] * 3)
    assert not decide(NOW, problem).changes


def test_policy_counts_load_saved_by_collocation():
    traffic = np.zeros((4, 4))
    traffic[0, 1] = traffic[2, 3] = 5
    problem = PlacementProblem([9] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4, traffic=traffic)
    together = [0, 0, 2, 2]
    assert decide(NOW, problem, bin=together).add == 2
    # Half of the load is communication, all of which the plan saves.
    spared = decide(TargetUtilisation(patience=1, communication=1.0), problem, bin=together)
    assert spared.add == 0
    assert spared.remove == ()


def test_policy_keeps_node_whose_load_others_cannot_balance():
    # Two nodes would be at 65 % on average, but one of them at 87 %.
    problem = PlacementProblem([26] * 3, [0, 1, 2], 3, capacity=[60] * 3)
    assert not decide(NOW, problem).changes
    fine = PlacementProblem([13] * 6, [0, 0, 1, 1, 2, 2], 3, capacity=[60] * 3)
    assert len(decide(NOW, fine).remove) == 1


def test_policy_removes_idle_nodes_despite_large_group():
    problem = PlacementProblem([9, 1], [0, 1], 6, capacity=[10] * 6)
    assert decide(NOW, problem).remove == (2, 3, 4, 5)


def test_policy_keeps_marked_nodes_before_adding_new_ones():
    problem = PlacementProblem(
        [9, 9, 9, 9], [0, 1, 2, 3], 4, capacity=[10] * 4, draining=[2, 3], state_bytes=[1, 1, 1, 2]
    )
    # Six nodes are needed: two are live, two are kept.
    assert decide(NOW, problem, marked=[2, 3]) == Scaling(add=2, keep=(2, 3))
    # A bin that drains for another reason is not kept.
    assert decide(NOW, problem, marked=[3]) == Scaling(add=3, keep=(3,))
    little = replace(problem, load=np.array([9.0, 9, 1, 1]))
    assert decide(NOW, little, marked=[2, 3]) == Scaling(keep=(3,))


def test_policy_stays_within_least_and_most_nodes():
    full = PlacementProblem([30] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    assert decide(TargetUtilisation(most=5), full) == Scaling(add=1)
    at_most = decide(TargetUtilisation(most=4), full)
    assert at_most == Scaling()
    assert "limited to 4" in at_most.reason
    idle = PlacementProblem([0] * 4, [0, 1, 2, 3], 4, capacity=[10] * 4)
    assert len(decide(TargetUtilisation(patience=1, least=3), idle).remove) == 1


def test_policy_uses_most_used_resource():
    problem = PlacementProblem([[1, 9], [1, 9]], [0, 1], 2, capacity=[[10, 10], [10, 10]])
    assert decide(NOW, problem) == Scaling(add=1)


def test_policy_accounts_for_node_capacities():
    problem = PlacementProblem([1] * 30, [0] * 10 + [1] * 20, 2, capacity=[10, 20])
    # 30 / 0.7 = 42.9, so 12.9 more are needed; a node has 15 on average.
    assert decide(NOW, problem) == Scaling(add=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_policy_after_scaling_requests_no_further_change(seed):
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


def test_policy_without_capacities_raises():
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
def test_target_utilisation_with_invalid_options_raises(options, message):
    with pytest.raises(PlanningError, match=message):
        TargetUtilisation(**options)


def test_scaling_with_contradictory_bins_raises():
    with pytest.raises(PlanningError, match="name each bin once"):
        Scaling(remove=(1,), keep=(1,))
    with pytest.raises(PlanningError, match="add is -1"):
        Scaling(add=-1)

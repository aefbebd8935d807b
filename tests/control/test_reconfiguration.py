from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.reconfiguration import GroupMove, Reconfigurer
from dask_elastic.control.scaling import Scaling, TargetUtilisation
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance
from dask_elastic.planning.registry import planner
from dask_elastic.vocab.errors import PlanningError

CAPACITY = 10.0


class Cluster:
    """A cluster that adds and stops nodes as requested and carries plans out."""

    def __init__(self, loop, nodes, groups, refuses=False):
        self.loop = loop
        self.names = [f"node-{number}" for number in range(nodes)]
        self.place = {group: self.names[group % nodes] for group in range(groups)}
        self.created = nodes
        self.refuses = refuses
        self.history = []

    def problem(self, load, **budget):
        current = [self.names.index(self.place[group]) for group in range(len(load))]
        return PlacementProblem(
            load,
            current,
            len(self.names),
            state_bytes=np.ones(len(load)),
            capacity=[CAPACITY] * len(self.names),
            **budget,
        )

    def period(self, load, **budget):
        proposal = self.loop.begin(self.problem(load, **budget), self.names)
        assert not {*proposal.release} & {*self.place.values()}, "a released node still has groups"
        self.names = [name for name in self.names if name not in proposal.release]
        if proposal.add and not self.refuses:
            self.names += [f"node-{self.created + number}" for number in range(proposal.add)]
            self.created += proposal.add
        done = self.loop.finish(proposal, self.problem(load, **budget), self.names)
        validate(done.problem, done.placement)
        for move in done.moves:
            assert self.place[move.group] == move.source
            assert move.target not in self.loop.marked
            self.place[move.group] = move.target
        self.history.append((len(proposal.release), proposal.add, len(proposal.remove), len(proposal.keep)))
        return proposal, done


def loop(**options):
    return Reconfigurer(planner("flux"), TargetUtilisation(patience=2, **options))


def test_reconfigurer_adds_nodes_before_final_plan():
    cluster = Cluster(loop(), nodes=4, groups=40)
    _, done = cluster.period(np.full(40, 0.9))
    assert len(cluster.names) == 6
    assert load_distance(done.problem, done.placement.bin) < 0.5
    assert {*cluster.place.values()} == {*cluster.names}


def test_reconfigurer_without_scaling_uses_potential_plan():
    calls = []

    class Counting(Milp):
        def plan(self, problem, seed=0):
            calls.append(problem)
            return super().plan(problem, seed)

    reconfigurer = Reconfigurer(Counting(), TargetUtilisation())
    proposal = reconfigurer.begin(PlacementProblem([7, 7], [0, 1], 2, capacity=[10, 10]), "ab")
    done = reconfigurer.finish(proposal)
    assert done.placement is proposal.potential
    assert done.moves == ()
    assert len(calls) == 1
    reconfigurer.finish(reconfigurer.begin(PlacementProblem([9, 9], [0, 1], 2, capacity=[10, 10]), "ab"))
    assert len(calls) == 3


def test_reconfigurer_drains_nodes_within_budget_and_releases_empty_ones():
    cluster = Cluster(loop(), nodes=8, groups=40)
    load = np.full(40, 0.5)
    for _ in range(20):
        before = dict(cluster.place)
        cluster.period(load, max_moves=3)
        assert sum(before[group] != cluster.place[group] for group in before) <= 3
    removed, released = (sum(row[column] for row in cluster.history) for column in (2, 0))
    assert removed == released == 5
    assert len(cluster.names) == 3
    first, last = ([i for i, row in enumerate(cluster.history) if row[column]] for column in (2, 0))
    # Five nodes with five groups each; three groups move per period.
    assert first == [1]
    assert last[-1] >= 1 + 25 // 3
    assert cluster.loop.marked == set()


def test_reconfigurer_keeps_draining_nodes_when_load_rises():
    cluster = Cluster(loop(), nodes=8, groups=40)
    for _ in range(3):
        cluster.period(np.full(40, 0.5), max_moves=2)
    assert len(cluster.loop.marked) == 5
    proposal, _ = cluster.period(np.full(40, 1.3), max_moves=2)
    assert len(proposal.keep) == 5
    assert proposal.add == 0
    assert cluster.loop.marked == set()


def test_reconfigurer_balances_without_adding_nodes():
    reconfigurer = loop()
    problem = PlacementProblem([4, 4, 4, 1, 1], [0, 0, 0, 1, 2], 3, capacity=[CAPACITY] * 3)
    assert problem.shares(problem.current).max() > 1
    proposal = reconfigurer.begin(problem, "abc")
    assert not proposal.scales
    assert reconfigurer.finish(proposal).moves


def test_reconfigurer_relieves_overloaded_node_before_draining_another():
    # Node 0 is full and node 3 is marked for removal; the budget covers one move.
    class Removes:
        def decide(self, problem, plan, marked, last):
            return Scaling(remove=() if marked.any() else (3,))

    reconfigurer = Reconfigurer(Milp(), Removes())
    load = [5, 5, 5, 3, 3, 2]
    problem = PlacementProblem(load, [0, 0, 0, 1, 2, 3], 4, capacity=[20] * 4, max_moves=1)
    done = reconfigurer.finish(reconfigurer.begin(problem, "abcd"))
    assert [move.source for move in done.moves] == ["a"]


def test_reconfigurer_plans_without_nodes_that_were_not_added():
    cluster = Cluster(loop(), nodes=2, groups=10, refuses=True)
    load = np.linspace(1.0, 3.0, 10)
    proposal, done = cluster.period(load)
    assert proposal.add > 0
    assert len(cluster.names) == 2
    assert load_distance(done.problem, done.placement.bin) < 1
    without = loop()
    proposal = without.begin(cluster.problem(load), cluster.names)
    assert without.finish(proposal).nodes == tuple(cluster.names)


def test_reconfigurer_drains_nodes_marked_elsewhere_without_releasing_or_keeping_them():
    reconfigurer = loop()
    problem = PlacementProblem([9, 9, 9], [0, 1, 2], 3, capacity=[CAPACITY] * 3, draining=[2])
    proposal = reconfigurer.begin(problem, "abc")
    assert proposal.keep == ()
    done = reconfigurer.finish(proposal, replace(problem, bins=5, capacity=np.full(5, CAPACITY), draining=[2]), "abcde")
    assert [move.source for move in done.moves] == ["c"]
    empty = replace(done.problem, current=done.placement.bin)
    assert reconfigurer.begin(empty, "abcde").release == ()


def test_reconfigurer_keeps_marked_node_if_all_others_drain():
    reconfigurer = Reconfigurer(planner("flux"), TargetUtilisation(patience=1))
    problem = PlacementProblem([1, 1, 1], [0, 1, 2], 3, capacity=[CAPACITY] * 3)
    assert reconfigurer.begin(problem, "abc").remove == ("b", "c")
    proposal = reconfigurer.begin(replace(problem, draining=np.array([True, False, False])), "abc")
    # One of the two is marked again, now that the other stays.
    assert proposal.keep == ("b",)
    assert reconfigurer.marked == {"c"}
    assert {move.target for move in reconfigurer.finish(proposal).moves} == {"b"}


def test_reconfigurer_unmarks_absent_nodes():
    reconfigurer = Reconfigurer(planner("flux"), TargetUtilisation(patience=1))
    reconfigurer.begin(PlacementProblem([1, 1], [0, 1], 2, capacity=[CAPACITY] * 2), ["a", "b"])
    assert reconfigurer.marked == {"b"}
    # Node b left by itself; a later node of the same name must not inherit the mark.
    reconfigurer.begin(PlacementProblem([6, 1], [0, 0], 1, capacity=[CAPACITY]), ["a"])
    assert reconfigurer.marked == set()


def test_reconfiguration_moves_of_new_groups_have_no_source():
    reconfigurer = Reconfigurer(planner("flux"), TargetUtilisation())
    done = reconfigurer.finish(reconfigurer.begin(PlacementProblem([6, 6], [-1, 1], 2, capacity=[CAPACITY] * 2), "ab"))
    assert done.moves == (GroupMove(0, None, "a"),)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_reconfigurer_under_steady_load_reaches_fixed_point(seed):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(1, 7))
    groups = int(random.integers(2 * nodes, 40))
    load = random.pareto(3, groups) * random.uniform(0.2, 2)
    cluster = Cluster(Reconfigurer(planner("flux"), TargetUtilisation(patience=2)), nodes, groups)
    budget = {"max_moves": int(random.integers(2, 8))} if random.random() < 0.5 else {}
    for _ in range(40):
        cluster.period(load, **budget)
    assert cluster.history[-6:] == [(0, 0, 0, 0)] * 6, f"seed {seed}: {cluster.history}"
    assert cluster.loop.marked == set()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_reconfigurer_under_changing_load_keeps_invariants(seed):
    random = np.random.default_rng(seed)
    groups = int(random.integers(4, 30))
    cluster = Cluster(Reconfigurer(planner("flux"), TargetUtilisation(patience=1, most=9)), 3, groups)
    load = random.uniform(0, 1, groups)
    for _ in range(25):
        load = load * random.uniform(0.5, 2.0) * random.uniform(0.8, 1.2, groups)
        load *= min(1.0, 80 / load.sum())
        cluster.period(load, max_moves=int(random.integers(1, 6)))
        live = [name for name in cluster.names if name not in cluster.loop.marked]
        assert 1 <= len(live) <= 9
        assert {*cluster.place.values()} <= {*cluster.names}


class Wrong:
    def __init__(self, scaling):
        self.scaling = scaling

    def decide(self, problem, plan, marked, last):
        return self.scaling


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (Scaling(remove=(2,)), "removes bin 2"),
        (Scaling(remove=(7,)), "removes bin 7"),
        (Scaling(keep=(0,)), "keeps bin 0"),
        (Scaling(keep=(2,)), "keeps bin 2"),
    ],
)
def test_reconfigurer_with_policy_naming_wrong_bin_raises(scaling, message):
    problem = PlacementProblem([1, 1], [0, 1], 3, draining=[2])
    with pytest.raises(PlanningError, match=message):
        Reconfigurer(planner("flux"), Wrong(scaling)).begin(problem, "abc")


def test_reconfigurer_with_wrong_node_names_raises():
    reconfigurer = loop()
    problem = PlacementProblem([7, 7], [0, 1], 2, capacity=[CAPACITY] * 2)
    for names in ("a", "aa", "abc"):
        with pytest.raises(PlanningError, match="give 2 distinct names"):
            reconfigurer.begin(problem, names)
    proposal = reconfigurer.begin(problem, "ab")
    with pytest.raises(PlanningError, match="belong together"):
        reconfigurer.finish(proposal, problem)

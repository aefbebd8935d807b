"""Planners of large problems: counts of what their time is spent on, which do not depend on the machine."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.intervals import single_step
from dask_elastic.planning.intervals.load_limit import least_tau, reach
from dask_elastic.planning.placement import cola, splits
from dask_elastic.planning.placement.bisection import Bisection
from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.correlated_sets import Relations, Splitter, split
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.problem import PlacementProblem

BINS, GROUPS = 1_000, 3_000


def loads(seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, GROUPS)


def problem(**options):
    random = np.random.default_rng(1)
    return PlacementProblem(loads(), random.integers(BINS, size=GROUPS), BINS, **options)


def test_groups_are_passed_over_together_once_the_budget_is_used_up(monkeypatch):
    asked = []
    allows = Draft.allows
    monkeypatch.setattr(Draft, "allows", lambda self, *one: asked.append(one) or allows(self, *one))
    wanted = np.random.default_rng(2).integers(BINS, size=GROUPS)
    limited = problem(max_moves=4)
    assert (approach(limited, wanted) != limited.current).sum() == 4
    assert len(asked) < 100


def test_groups_move_as_far_as_if_each_was_asked_in_turn():
    limited = problem(capacity=np.full(BINS, 2.2), max_moves=40, max_cost=25.0, state_bytes=loads(3))
    wanted = np.random.default_rng(2).integers(BINS, size=GROUPS)
    draft = Draft(limited, wanted)
    moved = True
    while moved:
        moved = False
        for group in np.argsort(-limited.weight, kind="stable").tolist():
            if draft.bin[group] != wanted[group] and draft.allows(group, int(wanted[group])):
                draft.move(group, int(wanted[group]))
                moved = True
    assert approach(limited, wanted).tolist() == draft.bin.tolist()


def test_sets_are_split_in_few_rounds_without_a_comparison_of_pairs():
    series = loads() * np.random.default_rng(4).uniform(0.8, 1.2, (12, GROUPS))
    relations = Relations(series, series, threshold=0.3)
    splitter = Splitter(relations, exact=True)
    left = [len(splitter.next(BINS - made)) for made in range(1, BINS)]
    assert min(left) > 0
    assert relations.compared == 0
    assert splitter.rounds < 30


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("exact", [False, True])
def test_sets_are_those_of_the_whole_matrix(exact, spread):
    random = np.random.default_rng(5)
    series = random.lognormal(0, spread, (6, 80))
    centred = series if exact else series - series.mean(axis=0)
    label, size = np.zeros(80, dtype=np.int64), series.sum(axis=0)
    product = centred.T @ centred
    scale = np.sqrt(np.diag(product))
    similarity = product / np.outer(scale, scale)
    related = (similarity >= 0.3) & ~np.eye(80, dtype=bool)
    for made in range(1, 20):
        same = (label[:, None] == label) & related
        pull = np.where(same, product, 0).sum(axis=1)
        pull, load = np.round(pull / pull.max(), 9), np.bincount(label, size)[label]
        several = np.flatnonzero(np.bincount(label)[label] > 1).tolist()
        chosen = min(several, key=lambda group: (-pull[group], -load[group], size[group], group))
        members = label == label[chosen]
        leaving = np.flatnonzero(members & related[chosen])
        if not leaving.size:
            leaving = np.array([max(set(np.flatnonzero(members)) - {chosen}, key=lambda group: size[group])])
        elif exact:
            leaving = leaving[np.argsort(-similarity[chosen][leaving])]
            fits = np.cumsum(size[leaving]) <= size[members].sum() / 2
            leaving = leaving[: max(int(fits.sum()), 1)]
        label[leaving] = made
    assert split(series, 20, 0.3, exact).tolist() == label.tolist()


def test_partitioner_cuts_few_of_the_parts(monkeypatch):
    made = []

    class Counted(Bisection):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(splits, "Bisection", Counted)
    traffic = sp.random(GROUPS, GROUPS, density=8 / GROUPS, random_state=0)
    cola.Cola().plan(problem(traffic=traffic, capacity=np.full(BINS, 8.0), max_moves=4))
    assert 0 < made[0].cuts < GROUPS / 10


def test_single_step_fills_in_few_ends_for_each_number_of_intervals(monkeypatch):
    load, shapes = loads(), []
    table = single_step._Table
    monkeypatch.setattr(single_step, "_Table", lambda *given: shapes.append(table(*given)) or shapes[-1])
    tau = max(0.2, least_tau(load, BINS) + 1e-6)
    before = np.stack([np.arange(0, GROUPS, 3), np.arange(3, GROUPS + 3, 3)], axis=1)
    plan = single_step.single_step(load, loads(6), before, BINS, tau)
    assert shapes[0].kept.shape[2] < GROUPS / 5
    heaviest = max(load[start:end].sum() for start, end in plan.intervals.tolist())
    assert heaviest <= (1 + tau) * load.mean() * GROUPS / BINS * (1 + 1e-6)
    assert reach(load, heaviest)[-1] == GROUPS

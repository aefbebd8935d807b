from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from dask_elastic.planning import matching
from dask_elastic.planning.augmentation import least_cost_columns
from dask_elastic.planning.matching import best_columns
from dask_elastic.vocab.errors import PlanningError


def pairs(seed, rows, columns, count, whole):
    random = np.random.default_rng(seed)
    worth = random.integers(1, 4, count).astype(float) if whole else random.uniform(0.1, 1, count)
    return random.integers(rows, size=count), random.integers(columns, size=count), worth


@pytest.mark.parametrize("at_once", [0, 1 << 20])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_sparse_matchings_are_worth_as_much_as_those_of_the_whole_table(seed, whole, at_once, monkeypatch):
    row, column, worth = pairs(seed, 40, 60, 90, whole)
    monkeypatch.setattr(matching, "SMALL", 0)
    monkeypatch.setattr(matching, "AT_ONCE", at_once)
    chosen, worths = best_columns(row, column, worth, (40, 60))
    table = np.zeros((40, 60))
    np.add.at(table, (row, column), worth)
    best = table[linear_sum_assignment(table, maximize=True)].sum()
    assert len(set(chosen.tolist())) == 40
    assert worths.tolist() == pytest.approx(table[np.arange(40), chosen].tolist())
    assert worths.sum() == pytest.approx(best)


def test_rows_without_a_pair_take_free_columns_in_the_given_orders(monkeypatch):
    monkeypatch.setattr(matching, "SMALL", 0)
    order = np.array([1.0, 9.0, 2.0]), np.array([5.0, 7.0, 1.0, 6.0])
    chosen, worths = best_columns(np.array([0]), np.array([1]), np.array([1.0]), (3, 4), order)
    # Row 1 comes before row 2, and column 3 before column 0.
    assert chosen.tolist() == [1, 3, 0]
    assert worths.tolist() == [1, 0, 0]


def test_large_matchings_have_no_table(monkeypatch):
    monkeypatch.setattr(matching, "linear_sum_assignment", None)
    row, column, worth = pairs(0, 1_000, 1_000, 3_000, whole=False)
    chosen, _ = best_columns(row, column, worth, (1_000, 1_000))
    assert sorted(chosen.tolist()) == list(range(1_000))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_matchings_with_pauses_are_those_of_scipy_also_where_several_are_best(seed, whole, monkeypatch):
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 50))
    columns = rows + int(random.integers(20))
    given = pairs(seed, rows, columns, int(random.integers(1, 6)) * rows, whole)
    monkeypatch.setattr(matching, "SMALL", 0)
    monkeypatch.setattr(matching, "_SPARSE", 0)
    found = []
    for at_once in (0, 1 << 20):
        monkeypatch.setattr(matching, "AT_ONCE", at_once)
        found.append([part.tolist() for part in best_columns(*given, (rows, columns))])
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", [1_329, 5_347, 5_531])
def test_matchings_with_pauses_are_those_of_scipy_where_sums_are_rounded(seed, monkeypatch):
    """With these seeds, a free column becomes nearer than the nearest one by rounding."""
    random, count = np.random.default_rng(seed), 40
    row, column = random.integers(count, size=600), random.integers(count, size=600)
    worth = random.integers(1, 5, 600) / 3
    monkeypatch.setattr(matching, "SMALL", 0)
    monkeypatch.setattr(matching, "_SPARSE", 0)
    found = []
    for at_once in (0, 1 << 20):
        monkeypatch.setattr(matching, "AT_ONCE", at_once)
        found.append(best_columns(row, column, worth, (count, count))[0].tolist())
    assert found[0] == found[1]


def counting(name):
    def compare(self, other):
        Counted.compared += 1
        return getattr(float(self), name)(float(other))

    return compare


class Counted(float):
    """A number that counts how often numbers are compared."""

    compared = 0
    __hash__ = float.__hash__

    def __sub__(self, other):
        return Counted(float(self) - float(other))

    __lt__, __le__, __gt__, __ge__, __eq__ = map(counting, ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"))


def test_paths_look_at_columns_a_few_times_where_rows_have_many_pairs(monkeypatch):
    """Looking at all columns at each step of a path takes 670,000 comparisons."""
    count, each = 400, 10
    random = np.random.default_rng(0)
    costs = [
        {column: Counted(-1 - random.random()) for column in random.integers(count, size=each).tolist()}
        | {count + row: Counted(-1.0)}
        for row in range(count)
    ]
    monkeypatch.setattr(Counted, "compared", 0)
    assert len(set(least_cost_columns(costs, 2 * count))) == count
    assert Counted.compared < 200_000


@pytest.mark.parametrize("costs", [[{0: 1.0}, {0: 2.0}], [{0: 1.0}, {}], [{0: 1.0}, {0: float("nan")}]])
def test_rows_without_a_column_of_their_own_are_an_error(costs):
    with pytest.raises(PlanningError, match="row 1 has no column of its own"):
        least_cost_columns(costs, 1)


def test_large_matchings_pause_for_each_row():
    pauses = []
    best_columns(*pairs(0, 1_000, 1_000, 3_000, whole=False), (1_000, 1_000), pause=lambda: pauses.append(1))
    assert len(pauses) > 1_000

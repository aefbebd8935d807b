"""ELB's and CLB's figures: the claims of the paper that hold for the generated stream."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dask_elastic.papers.figures import elb_clb

FIGURES = {figure.name: figure for figure in elb_clb.FIGURES}


@cache
def computed(name):
    return FIGURES[name].compute(0, True).to_pandas()


def means(name, column):
    return computed(name).groupby("algorithm")[column].mean()


def test_clb_plan_lowers_imbalance_of_following_windows():
    table = computed("elb-clb-2")
    for stream in ("Gaussian", "Zipf"):
        rows = table[table["stream"] == stream].set_index("window")
        assert rows["imbalance"].iloc[:24].mean() > 5 * rows["imbalance"].iloc[24:].mean()
        assert set(rows.index[rows["moved_share"] > 0]) <= {23, 47, 71}
        assert rows["moved_share"][23] > 0.05


def test_elb_is_better_balanced_and_moves_more_state_than_clb():
    imbalance, moved = means("elb-clb-3", "imbalance"), means("elb-clb-4", "moved_share")
    assert imbalance["PKG"] < imbalance["ELB"] < imbalance["CLB"]
    assert moved["UHLB"] > moved["ELB"] > moved["CLB"] > 0
    assert moved["PKG"] > moved["ELB"]


def test_table_1_summarises_measures_of_figure_3():
    table, history = computed("elb-clb-table-1").set_index("algorithm"), computed("elb-clb-3")
    assert set(table.index) == set(history["algorithm"])
    for algorithm, rows in history.groupby("algorithm"):
        assert table["mean"][algorithm] == pytest.approx(rows["imbalance"].mean())
        assert table["deviation"][algorithm] == pytest.approx(rows["imbalance"].std(ddof=0))
        assert table["moved_share"][algorithm] == pytest.approx(rows["moved_share"].mean())


def test_figure_2_is_equal_for_same_seed_and_differs_for_other_seed():
    first, again, other = (FIGURES["elb-clb-2"].compute(seed, True) for seed in (3, 3, 4))
    assert first.equals(again)
    assert not first.equals(other)


def test_pkg_splits_load_of_one_key_between_two_instances():
    # One key has all the load: two instances share it, so half of the state must be merged.
    counts = np.zeros((1, 5))
    counts[0, 2] = 1000
    row = elb_clb._two_choices(counts, seed=1).to_pylist()[0]
    assert row["moved_share"] == pytest.approx(0.5)
    assert row["imbalance"] == pytest.approx(np.var([500, 500, *[0] * 8]))

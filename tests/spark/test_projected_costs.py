"""Projected costs that Spark computes are those of one process, and plan migrations all the same."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.errors import PythonException

import dask_elastic.spark
from dask_elastic.planning.intervals import partitionings
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts
from dask_elastic.planning.intervals.transition import projected_costs, single_step_aware
from dask_elastic.spark import spark_chain
from dask_elastic.vocab.errors import PlanningError

MATRIX = {2: {3: 0.7, 4: 0.3}, 3: {2: 0.5, 4: 0.5}, 4: {2: 0.2, 3: 0.8}}
TAU = 0.5


@pytest.fixture
def tasks(monkeypatch):
    """Load and state of tasks whose partitionings are in several blocks."""
    monkeypatch.setattr(partitionings, "_CELLS", 40_000)
    random = np.random.default_rng(6)
    return random.lognormal(0, 0.2, 16), random.lognormal(0, 1, 16)


@pytest.mark.parametrize("size", [1.0, 1e10], ids=["doubles suffice", "doubles do not suffice"])
def test_costs_of_spark_are_equal_to_the_last_bit_and_plan_after_saving(spark, tasks, tmp_path, size):
    load, state = tasks[0], tasks[1] * size
    seen = []
    path = tmp_path / "costs.parquet"
    options = {"tau": TAU, "discount": 0.2, "allow_empty": True}
    found = dask_elastic.spark.projected_costs(
        spark, load, state, MATRIX, **options, progress=lambda done, of: seen.append((done, of)), path=path
    )
    wanted = projected_costs(load, state, MATRIX, **options)
    assert len(found) == len(wanted) > 100
    for mine, theirs in zip(found.groups, wanted.groups, strict=True):
        assert mine.nodes == theirs.nodes
        np.testing.assert_array_equal(mine.partitionings.bounds, theirs.partitionings.bounds)
        np.testing.assert_array_equal(mine.costs, theirs.costs)
    assert seen == sorted(seen)
    assert seen[-1] == (len(found), len(found))
    before = [[0, 5], [5, 11], [11, 16]]
    plans = [single_step_aware(load, state, before, 4, TAU, costs) for costs in (ProjectedCosts.load(path), wanted)]
    assert plans[0].cost == plans[1].cost > 0
    np.testing.assert_array_equal(plans[0].intervals, plans[1].intervals)


def test_bad_arguments_are_refused_before_spark_begins():
    with pytest.raises(PlanningError, match="discount is 1"):
        dask_elastic.spark.projected_costs(None, [1] * 4, [1] * 4, {1: {2: 1.0}, 2: {1: 1.0}}, tau=0.0, discount=1)


def test_error_of_a_worker_reaches_the_caller_and_frees_what_spark_keeps(spark, tasks, monkeypatch):
    def broken(batches):
        raise RuntimeError("no block can be computed")

    # Other tests of the session keep something, too.
    kept = set(spark.sparkContext._jsc.getPersistentRDDs())
    monkeypatch.setattr(spark_chain, "_building", lambda *_: broken)
    with pytest.raises(PythonException, match="no block can be computed"):
        dask_elastic.spark.projected_costs(spark, *tasks, MATRIX, tau=TAU, discount=0.2)
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= kept

"""Computes that run in one task give the results of computes in tasks of their own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.testing import run
from dask_elastic.vocab.errors import SchemaMismatch, UserCodeError

ROWS = 500


def loans(random):
    areas = [f"area-{number}" for number in range(30)]
    return pa.table(
        {
            "area": random.choice(areas, ROWS),
            "kind": random.integers(0, 8, ROWS),
            "amount": random.integers(0, 1000, ROWS),
        }
    ).to_batches(max_chunksize=60)


@de.per_row(output={"area": pa.string(), "rank": pa.int64()})
def ranked(row, state):
    state["rank"] = state.get("rank", 0) + 1
    return {"area": row["area"], "rank": state["rank"]}


def chain(batches):
    """Return aggregates by area and kind, a filter, own logic by area, a map, and aggregates by area and rank."""
    topology = de.Topology("loans")
    rows = topology.source("loans", de.sources.Arrow(pa.Table.from_batches(batches)))
    kinds = rows.key_by("area", "kind").compute({"loans": agg.Count(), "total": agg.Sum("amount")}, name="kinds")
    many = kinds.filter(pc.field("kind") > 1, name="many")
    ranks = many.key_by("area").compute(ranked, state={"rank": pa.int64()}, name="ranks", keeps=["area"])
    tidy = ranks.map(lambda batch: batch, name="tidy", keeps=["area"])
    tidy.key_by("rank", "area").compute({"seen": agg.Count()}, name="seen").sink(de.sinks.Collect(), name="out")
    kinds.sink(de.sinks.Collect(), name="totals")
    return topology


def rows_of(table):
    return Counter(tuple(row.items()) for row in table.to_pylist())


@pytest.mark.parametrize("executors", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_fused_computes_have_the_state_of_separate_ones(executors, seed):
    topology = chain(loans(np.random.default_rng(seed)))
    fused = run(topology, executors=executors, seed=seed, fuse="auto")
    apart = run(topology, executors=executors, seed=seed)
    assert fused.state.keys() == apart.state.keys() == {"kinds", "ranks", "seen"}
    assert rows_of(fused.state["kinds"]) == rows_of(apart.state["kinds"])
    # The numbers of intermediate results, of which a batch has one for each key, depend on the division into batches.
    for result in (fused, apart):
        ranks = dict(zip(*result.state["ranks"].to_pydict().values(), strict=True))
        expected = {(rank, area, 1) for area, last in ranks.items() for rank in range(1, last + 1)}
        assert {tuple(row.values()) for row in result.state["seen"].to_pylist()} == expected
        assert rows_of(result.outputs["out"]) == rows_of(result.state["seen"])
        totals = [row for row in result.outputs["totals"].to_pylist() if row["kind"] > 1]
        assert Counter(row["area"] for row in totals) == Counter(ranks)


def test_wrong_declaration_ends_the_job():
    topology = de.Topology("wrong")
    rows = topology.source("rows", de.sources.Arrow({"area": [*range(50)]}))
    first = rows.key_by("area").compute({"seen": agg.Count()}, name="first")

    def shifted(batch):
        return {"area": pc.add(batch["area"], 1000)}

    first.map(shifted, keeps=["area"]).key_by("area").compute({"again": agg.Count()}, name="second")
    with pytest.raises(SchemaMismatch, match="'shifted' declares keeps= for 'area', but changes values, so that rows"):
        run(topology, fuse="auto")
    assert run(topology).state["second"].num_rows == 50


def test_error_names_the_fused_compute():
    topology = de.Topology("broken")
    rows = topology.source("rows", de.sources.Arrow({"area": [0, 1, 2]}))
    first = rows.key_by("area").compute({"seen": agg.Count()}, name="first")

    @de.per_row
    def fails(row, state):
        if row["area"] == 1:
            raise ValueError("unwanted")

    first.key_by("area").compute(fails, state={"x": pa.int64()}, name="second").sink(de.sinks.Collect())
    with pytest.raises(UserCodeError, match="second"):
        run(topology, fuse="auto")
    skipped = run(topology, fuse="auto", on_error="skip")
    assert skipped.dead_letters["second"]["area"].to_pylist() == [1]
    assert skipped.state["first"].num_rows == 3

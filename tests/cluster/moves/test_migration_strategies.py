"""Shards of windows move between workers by each strategy, and no result changes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.runtime.client.submission import described_job
from dask_elastic.vocab.errors import MoveRefused, SubmitError

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import Pump

KEYS = 500
COUNT = 1_000_000
"""More than are sent before all shards have moved, also on a slow machine."""


def shard_moves_by(job, strategy):
    """Request a move to another worker, and return whether any was made by a strategy."""
    placed = job.assignment()
    for row in placed.itertuples():
        for other in placed.itertuples():
            if row.node != other.node and len(row.shards):
                with contextlib.suppress(MoveRefused):
                    job.move_shard("counted", int(row.shards[0]), int(other.task))
    return strategy in set(job.moves()["strategy"])


@pytest.mark.parametrize("strategy", ["instant", "smooth", {"counted": "auto"}, "disruptive"], ids=str)
def test_windows_have_all_rows_while_shards_move(client, wait_until, strategy):
    numbers = np.arange(COUNT)
    rows = pa.table({"k": numbers % KEYS, "v": numbers % 97, "at": pa.array(numbers * 1000, pa.timestamp("us"))})
    topology = de.Topology("moved")
    source = topology.source("rows", de.sources.Push(rows.schema, event_time="at"))
    windows = source.key_by("k").window(de.windows.hopping("2s", "1s"))
    aggregates = {"rows": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}
    counted = windows.compute(aggregates, name="counted", shards=8, executors=1)
    counted.sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client, cores={"counted": 2}, migration=strategy, watermark_interval="10ms")

    def moved():
        metrics = job.metrics()
        return int(metrics.loc[metrics["operator"] == "counted", "moves_across"].sum())

    pump = Pump(job, rows, rows=200)
    pump.start()
    for cores in (5, 2, 4):
        before = moved()
        job.set_cores("counted", cores)
        wait_until(lambda b=before: moved() > b, "shards move between workers")
    if strategy == "smooth":
        wait_until(lambda: shard_moves_by(job, strategy), "a shard moves smoothly")
    used = set(job.moves().query("across_nodes")["strategy"])
    reasons = job.moves().query("across_nodes")["reason"]
    assert used <= {"labelled", "instant", "smooth"} if isinstance(strategy, dict) else strategy in used
    assert isinstance(strategy, dict) == any(reasons)
    # Both grow: the shorter one is read first.
    plain = len(job.decisions())
    decided = job.decisions(moves=True)
    assert decided["time"].is_monotonic_increasing
    of_moves = decided[decided["move"].notna()]
    assert set(of_moves["move"].map(lambda move: move["strategy"])) >= used
    assert all(move["strategy"] in reason for move, reason in zip(of_moves["move"], of_moves["reason"], strict=True))
    assert plain <= len(decided) - len(of_moves)
    sent = pump.stop().to_pandas()
    job.end_of_input()
    job.wait(timeout=100, progress=False)
    ends = sent["at"].dt.floor("1s") + pd.Timedelta("1s")
    pairs = pd.concat([sent.assign(end=ends), sent.assign(end=ends + pd.Timedelta("1s"))])
    wanted = pairs.groupby(["k", "end"])["v"].agg(["size", "sum"])
    found = job.collect("out").to_pandas().set_index(["k", "window_end"]).sort_index()[["rows", "sum"]]
    assert found.index.is_unique
    assert len(found) == len(wanted)
    assert (found.to_numpy() == wanted.sort_index().to_numpy()).all()


def windows_behind_each_other():
    """A topology whose computes can be fused, and moved instantly."""
    topology = de.Topology("chain")
    rows = pa.table({"k": [1], "at": pa.array([0], pa.timestamp("us")), "v": [1]})
    stream = topology.source("rows", de.sources.Arrow(rows, event_time="at"))
    for name in ("first", "second", "third"):
        stream = stream.key_by("k").window("1h").compute({"v": de.aggregate.Sum("v")}, name=name)
    return topology


@pytest.mark.parametrize(
    ("migration", "fused"),
    [
        ("labelled", {"first": ("second", "third")}),
        ("auto", {"first": ("second", "third")}),
        ("instant", {}),
        ({"third": "smooth"}, {"first": ("second",)}),
        ({"first": "instant"}, {"second": ("third",)}),
        ({"first": "labelled"}, {"first": ("second", "third")}),
        ({"third": "labelled"}, {"first": ("second",)}),
        ({"second": "auto"}, {"second": ("third",)}),
        ({"second": "labelled", "third": "instant"}, {}),
    ],
    ids=str,
)
def test_fuse_auto_leaves_apart_what_its_strategy_could_not_move(migration, fused):
    options = {"migration": migration}
    call = described_job.checked_job(windows_behind_each_other(), None, None, "auto", options)
    found = {one.name: tuple(compute.name for compute in one.fused) for one in call.summaries}
    assert {name: behind for name, behind in found.items() if behind} == fused


@pytest.mark.parametrize(
    ("cores", "migration", "match"),
    [
        ({}, {"second": "labelled"}, "migration names 'second', which runs in the tasks of another compute"),
        ({"second": 2}, "labelled", "cores= names 'second', which runs in the tasks of 'first'"),
        ({"second": 2}, "auto", "cores= names 'second', which runs in the tasks of 'first'"),
    ],
)
def test_pairs_given_by_hand_are_refused_with_options_of_the_compute_behind(cores, migration, match):
    by_hand, options = [("first", "second")], {"migration": migration}
    with pytest.raises(SubmitError, match=match):
        described_job.checked_job(windows_behind_each_other(), None, cores, by_hand, options)


def test_pairs_given_by_hand_are_refused_with_a_strategy_that_cannot_move_them():
    by_hand, options = [("first", "second")], {"migration": "instant"}
    with pytest.raises(SubmitError, match="'second' runs in the tasks of another compute"):
        described_job.checked_job(windows_behind_each_other(), None, None, by_hand, options)

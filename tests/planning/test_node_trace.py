from __future__ import annotations

import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.intervals.node_trace import NodeTrace, arrivals, node_trace, nodes_needed
from dask_elastic.vocab.errors import PlanningError

HOUR = np.timedelta64(1, "h")
DAY = np.timedelta64(1, "D")


@given(
    minutes=st.lists(st.integers(-100_000, 100_000), min_size=1, max_size=200),
    interval=st.sampled_from([HOUR, DAY, np.timedelta64(7, "m"), np.timedelta64(90, "s")]),
)
@settings(max_examples=100, deadline=None)
def test_every_arrival_is_counted_in_its_interval(minutes, interval):
    times = np.datetime64("2011-10-01T00:00") + np.array(minutes) * np.timedelta64(1, "m")
    start, counts = arrivals(times, interval)
    assert counts.sum() == len(minutes)
    assert counts[0] > 0
    assert counts[-1] > 0
    assert (start - np.datetime64(0, "s")) % interval == np.timedelta64(0, "s")
    for number, count in enumerate(counts[:50]):
        begin = start + number * interval
        assert count == ((times >= begin) & (times < begin + interval)).sum()


@given(
    counts=st.lists(st.integers(0, 10_000), min_size=1, max_size=50),
    least=st.integers(1, 8),
    more=st.integers(0, 10),
    peak=st.sampled_from([0.5, 0.9, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_nodes_rise_with_arrivals_within_the_range(counts, least, more, peak):
    nodes = nodes_needed(counts, least, least + more, peak)
    order = np.argsort(counts, kind="stable")
    assert (np.diff(nodes[order]) >= 0).all()
    assert nodes.min() == least
    assert nodes.max() <= least + more
    if np.quantile(counts, peak) > min(counts):
        assert nodes.max() == least + more


def test_node_counts_are_proportional_to_arrivals():
    counts = np.arange(0, 801)
    nodes = nodes_needed(counts, 8, 16)
    assert np.abs(nodes - (8 + counts / 100)).max() <= 0.5


def test_migrations_omit_groups_that_stay():
    trace = NodeTrace(np.datetime64("2011-10-01"), DAY, [3, 3, 4, 4, 3, 3])
    assert trace.migrations.tolist() == [3, 4, 3]
    assert NodeTrace(np.datetime64("2011-10-01"), DAY, np.empty(0, dtype=int)).migrations.tolist() == []


def test_matrix_is_of_the_month_before_only():
    start = np.datetime64("2011-10-01T00")
    nodes = np.concatenate([np.tile([8, 9], 120), np.tile([9, 10], 360), np.tile([11, 12], 120)])
    trace = NodeTrace(start, HOUR, nodes)
    moment = start + 10 * DAY + 30 * DAY
    assert trace.matrix_before(moment) == {9: {10: 1.0}, 10: {9: 1.0}}
    assert trace.matrix_before(start + 10 * DAY) == {8: {9: 1.0}, 9: {8: 1.0}}
    later = trace.between(moment, moment + 5 * DAY)
    assert set(later.nodes) == {11, 12}
    assert later.times[0] == moment
    assert len(later) == 120


def test_a_month_without_change_has_no_matrix():
    trace = NodeTrace(np.datetime64("2011-10-01T00"), HOUR, [8] * 1000)
    with pytest.raises(PlanningError, match=r"720 intervals begin within 30 days before 2011-11-01.* never changes"):
        trace.matrix_before(np.datetime64("2011-11-01T00"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrivals(np.array([], dtype="datetime64[s]"), HOUR), r"times has shape \(0,\)"),
        (lambda: arrivals([1, 2], HOUR), "type int64"),
        (lambda: arrivals(np.array(["2011-10-01", "NaT"], dtype="datetime64[s]"), HOUR), "time 1 is missing"),
        (lambda: arrivals(np.array(["2011-10-01"], dtype="datetime64[s]"), np.timedelta64(0, "h")), "interval is"),
        (lambda: arrivals(np.array(["2011-10-01"], dtype="datetime64[s]"), 3600), "interval is 3600"),
        (lambda: nodes_needed([1, -1]), "counts has shape"),
        (lambda: nodes_needed(["many"]), "counts is not an array of numbers"),
        (lambda: nodes_needed([1, 2], 3, 2), "least is 3 and most 2"),
        (lambda: nodes_needed([1, 2], 0, 2), "nodes is 0"),
        (lambda: nodes_needed([1, 2], peak=0), "peak is 0"),
        (lambda: NodeTrace(np.datetime64("2011-10-01"), DAY, [0, 1]), "nodes has shape"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(PlanningError, match=message):
        call()


def test_edits_of_a_day(data_path):
    times = pq.read_table(data_path("wiki_edits/edits.parquet"), columns=["ts"])["ts"].to_numpy()
    trace = node_trace(times, np.timedelta64(10, "m"))
    assert len(trace) == (times.max() - times.min().astype("datetime64[h]")) // np.timedelta64(10, "m") - 3
    assert trace.nodes.min() == 8
    assert trace.nodes.max() == 16
    noon = np.datetime64("2015-09-12T12:00")
    matrix = trace.matrix_before(noon, np.timedelta64(12, "h"))
    for nodes, row in matrix.items():
        assert sum(row.values()) == pytest.approx(1)
        assert nodes not in row


def test_texts_by_the_day(data_path):
    times = pq.read_table(data_path("commit_texts/commits.parquet"), columns=["arrival_ts"])["arrival_ts"].to_numpy()
    trace = node_trace(times, DAY, 2, 5, peak=0.99)
    assert trace.nodes.min() == 2
    assert trace.nodes.max() == 5
    changes = trace.migrations
    assert (np.diff(changes) != 0).all()
    assert len(changes) > 50
    moment = trace.times[len(trace) // 2]
    matrix = trace.matrix_before(moment, np.timedelta64(180, "D"))
    counted = trace.between(moment - np.timedelta64(180, "D"), moment).migrations
    assert sum(len(row) for row in matrix.values()) == len(set(itertools.pairwise(counted)))

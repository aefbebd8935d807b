from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import LatencyHistogram, LatencyWindow, MeterError

durations = st.floats(1e-6, 1e3)
TOLERANCE = 0.0201


def filled(values):
    histogram = LatencyHistogram()
    histogram.record_many(values)
    return histogram


@given(st.lists(durations, min_size=1), st.floats(0, 1))
def test_quantiles_are_right_to_two_per_cent(values, q):
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    # The rank is a product of floats, which may fall on either side of a whole number.
    near = [exact, *(float(np.quantile(values, min(1, max(0, q + d)), method="inverted_cdf")) for d in (-1e-9, 1e-9))]
    found = filled(values).quantile(q)
    assert any(found == pytest.approx(value, rel=TOLERANCE) for value in near)


@given(st.lists(durations, min_size=1))
def test_mean_is_right_to_two_per_cent(values):
    assert filled(values).mean() == pytest.approx(np.mean(values), rel=TOLERANCE)


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.integers(0, 1000))))
def test_one_by_one_equals_all_at_once(pairs):
    single, many = LatencyHistogram(), LatencyHistogram()
    for seconds, weight in pairs:
        single.record(seconds, weight)
    many.record_many([seconds for seconds, _ in pairs], [weight for _, weight in pairs])
    assert single == many
    assert single.count == sum(weight for _, weight in pairs)


@given(st.lists(durations), st.lists(durations))
def test_merge_counts_all_and_since_takes_it_back(first, second):
    total = filled(first)
    before = total.snapshot()
    total.merge(filled(second))
    assert total == filled(first + second)
    assert total.since(before) == filled(second)
    assert before == filled(first)


@given(st.lists(durations))
def test_bytes_and_pickle_come_back_equal(values):
    histogram = filled(values)
    assert LatencyHistogram.from_bytes(histogram.to_bytes()) == histogram
    assert pickle.loads(pickle.dumps(histogram)) == histogram


def test_values_out_of_range_count_at_the_ends():
    histogram = LatencyHistogram()
    for seconds in (0.0, -3.0, math.nan):
        histogram.record(seconds)
    assert histogram.quantile(1.0) == 1e-6
    histogram = LatencyHistogram()
    for seconds in (1e9, math.inf):
        histogram.record(seconds)
    assert histogram.quantile(0.0) == pytest.approx(1e3, rel=0.05)


def test_empty():
    histogram = LatencyHistogram()
    assert histogram.quantile(0.5) is None
    assert histogram.quantiles([0.5, 0.9]) == [None, None]
    assert histogram.mean() is None
    assert repr(histogram) == "<LatencyHistogram: empty>"
    assert histogram != "empty"


def test_repr_tells_the_quantiles():
    assert repr(filled([0.01] * 5)) == "<LatencyHistogram: 5 recorded, p50 0.0101 s, p99 0.0101 s>"


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_impossible_quantiles_are_refused(q):
    with pytest.raises(MeterError, match="from 0 to 1"):
        LatencyHistogram().quantile(q)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"dlh2" + b[4:], lambda b: b"", lambda b: b + b"x"])
def test_damaged_bytes_are_refused(damage):
    with pytest.raises(MeterError, match="no latency histogram"):
        LatencyHistogram.from_bytes(damage(filled([0.1, 0.2]).to_bytes()))


def test_a_bucket_out_of_range_is_refused():
    data = bytearray(filled([0.1]).to_bytes())
    data[8:10] = b"\xff\xff"
    with pytest.raises(MeterError, match="bucket 65535"):
        LatencyHistogram.from_bytes(bytes(data))


def test_window_looks_at_the_last_seconds_only():
    latency = LatencyWindow(window=1.0, slots=10)
    for tenth in range(30):
        latency.record(0.001 if tenth < 15 else 0.1, now=tenth / 10, weight=2)
    recent = latency.recent(now=2.95)
    assert recent.quantile(0.0) == pytest.approx(0.1, rel=TOLERANCE)
    assert 20 <= recent.count <= 22
    assert latency.overall.count == 60
    assert latency.recent(now=10.0).count == 0
    assert latency.window == 1.0

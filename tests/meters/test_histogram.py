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
def test_histogram_quantiles_are_within_two_per_cent(values, q):
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    # The rank is a product of floats, which rounding may put on either side of an integer.
    near = [exact, *(float(np.quantile(values, min(1, max(0, q + d)), method="inverted_cdf")) for d in (-1e-9, 1e-9))]
    found = filled(values).quantile(q)
    assert any(found == pytest.approx(value, rel=TOLERANCE) for value in near)


@given(st.lists(durations, min_size=1))
def test_histogram_mean_is_within_two_per_cent(values):
    assert filled(values).mean() == pytest.approx(np.mean(values), rel=TOLERANCE)


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.integers(0, 1000))))
def test_histogram_record_many_equals_single_records(pairs):
    single, many = LatencyHistogram(), LatencyHistogram()
    for seconds, weight in pairs:
        single.record(seconds, weight)
    many.record_many([seconds for seconds, _ in pairs], [weight for _, weight in pairs])
    assert single == many
    assert single.count == sum(weight for _, weight in pairs)


@given(st.lists(durations), st.lists(durations))
def test_histogram_since_inverts_merge(first, second):
    total = filled(first)
    before = total.snapshot()
    total.merge(filled(second))
    assert total == filled(first + second)
    assert total.since(before) == filled(second)
    assert before == filled(first)


@given(st.lists(durations))
def test_histogram_survives_bytes_and_pickle(values):
    histogram = filled(values)
    assert LatencyHistogram.from_bytes(histogram.to_bytes()) == histogram
    assert pickle.loads(pickle.dumps(histogram)) == histogram


def test_histogram_values_out_of_range_count_at_the_bounds():
    histogram = LatencyHistogram()
    for seconds in (0.0, -3.0, math.nan):
        histogram.record(seconds)
    assert histogram.quantile(1.0) == 1e-6
    histogram = LatencyHistogram()
    for seconds in (1e9, math.inf):
        histogram.record(seconds)
    assert histogram.quantile(0.0) == pytest.approx(1e3, rel=0.05)


def test_empty_histogram_has_no_quantiles_or_mean():
    histogram = LatencyHistogram()
    assert histogram.quantile(0.5) is None
    assert histogram.quantiles([0.5, 0.9]) == [None, None]
    assert histogram.mean() is None
    assert repr(histogram) == "<LatencyHistogram: empty>"
    assert histogram != "empty"


def test_histogram_repr_shows_quantiles():
    assert repr(filled([0.01] * 5)) == "<LatencyHistogram: 5 recorded, p50 0.0101 s, p99 0.0101 s>"


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_histogram_quantile_out_of_range_raises(q):
    with pytest.raises(MeterError, match="from 0 to 1"):
        LatencyHistogram().quantile(q)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"dlh2" + b[4:], lambda b: b"", lambda b: b + b"x"])
def test_histogram_from_damaged_bytes_raises(damage):
    with pytest.raises(MeterError, match="not a latency histogram"):
        LatencyHistogram.from_bytes(damage(filled([0.1, 0.2]).to_bytes()))


def test_merged_bytes_count_as_the_histograms_that_they_serialise():
    parts = [filled([0.1, 0.2]), LatencyHistogram(), filled([0.2, 3.0, 3.0])]
    merged, of_bytes = LatencyHistogram(), LatencyHistogram()
    for part in parts:
        merged.merge(part)
        of_bytes.merge_bytes(part.to_bytes())
    assert of_bytes == merged
    with pytest.raises(MeterError, match="same version"):
        merged.merge_bytes(parts[0].to_bytes()[:-1])
    assert of_bytes == merged


def test_histogram_from_bytes_with_bucket_out_of_range_raises():
    data = bytearray(filled([0.1]).to_bytes())
    data[8:10] = b"\xff\xff"
    with pytest.raises(MeterError, match="bucket 65535"):
        LatencyHistogram.from_bytes(bytes(data))


def test_latency_window_includes_only_last_seconds():
    latency = LatencyWindow(window=1.0, slots=10)
    for tenth in range(30):
        latency.record(0.001 if tenth < 15 else 0.1, now=tenth / 10, weight=2)
    recent = latency.recent(now=2.95)
    assert recent.quantile(0.0) == pytest.approx(0.1, rel=TOLERANCE)
    assert 20 <= recent.count <= 22
    assert latency.overall.count == 60
    assert latency.recent(now=10.0).count == 0
    assert latency.window == 1.0

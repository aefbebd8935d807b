"""Traffic between key groups: estimates from samples, however often each group is sampled, which fade with time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters.group_flows import KEPT, GroupFlows
from dask_elastic.vocab.group_flow import OTHERS

TARGETS = 8


def rates_of(flows, group):
    """The rates that are reported for a group, by target, and for all others."""
    return {
        (flow.operator, target): rate
        for flow in flows
        for source, target, rate in zip(flow.source.tolist(), flow.target.tolist(), flow.rate.tolist(), strict=True)
        if source == group
    }


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500)), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 1e6), min_size=3 * TARGETS, max_size=3 * TARGETS),
    st.lists(st.floats(0.0, 1e5), min_size=3, max_size=3),
)
def test_estimate_is_exact_where_each_row_sends_the_same(samples, sent, rows):
    per_row, meter = np.array(sent).reshape(3, TARGETS), GroupFlows()
    for group, count in samples:
        meter.note(group, count, False, {"next": count * per_row[group]})
    flows = meter.measured(0.0, np.array(rows))
    for group in {group for group, _ in samples}:
        found, whole = rates_of(flows, group), per_row[group] * rows[group]
        assert sum(found.values()) == pytest.approx(whole.sum())
        pairs = {target: rate for (_, target), rate in found.items() if target != OTHERS}
        assert len(pairs) <= KEPT
        for target, rate in pairs.items():
            assert rate == pytest.approx(whole[target])
            assert rate > whole.mean() * (1 - 1e-9)


def test_equal_traffic_to_all_groups_is_no_pair():
    meter = GroupFlows()
    meter.note(0, 10, False, {"next": np.full(TARGETS, 40.0)})
    [flow] = meter.measured(0.0, np.array([100.0]))
    assert (flow.target.tolist(), flow.rate.tolist()) == ([OTHERS], [3200.0])


def test_what_state_records_emit_counts_by_their_rate():
    meter = GroupFlows()
    for tenth in range(100):
        meter.records.add(1, tenth / 10)
    meter.note(1, 1, True, {"next": np.array([0.0, 0.0, 60.0, 0.0])})
    meter.note(1, 5, False, {"next": np.array([0.0, 20.0, 0.0, 0.0])})
    found = rates_of(meter.measured(10.0, np.array([0.0, 100.0])), 1)
    assert found == pytest.approx({("next", 2): 600.0, ("next", 1): 400.0}, rel=0.1)


def test_samples_fade_and_are_forgotten():
    meter = GroupFlows(half_life=1.0)
    meter.note(0, 1, False, {"next": np.array([8.0, 0.0])})
    rows = np.array([1.0])
    meter.measured(0.0, rows)
    meter.note(0, 1, False, {"next": np.array([0.0, 8.0])})
    assert rates_of(meter.measured(0.0, rows), 0) == {("next", OTHERS): 8.0}
    meter.measured(2.0, rows)
    meter.note(0, 1, False, {"next": np.array([0.0, 12.0])})
    # Of the three rows, the first two weigh a quarter each.
    assert rates_of(meter.measured(2.0, rows), 0)["next", 1] == pytest.approx((2.0 + 12.0) / 1.5)
    meter.measured(60.0, rows)
    assert meter.measured(60.0, rows) == ()


def test_group_that_has_left_sends_nothing():
    meter = GroupFlows()
    meter.note(0, 1, False, {"next": np.array([8.0, 0.0])})
    assert meter.measured(0.0, np.array([0.0, 5.0])) == ()

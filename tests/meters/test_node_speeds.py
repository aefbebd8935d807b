"""Speeds of nodes: learnt from service rates, relative to the mean, never from other operators' costs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.meters.node_speeds import FASTEST, SLOWEST, NodeSpeeds, ServedRates

logs = st.floats(-0.9, 0.9)


@settings(max_examples=60, deadline=None)
@given(st.lists(logs, min_size=2, max_size=6), st.lists(st.floats(1, 1e6), min_size=1, max_size=4))
def test_speeds_explain_all_rates_where_every_operator_is_on_every_node(nodes, operators):
    given = [
        (operator, str(node), rate * 2**log, 1.0)
        for operator, rate in enumerate(operators)
        for node, log in enumerate(nodes)
    ]
    speeds = NodeSpeeds(memory=0.0, doubt=0.0)
    speeds.observe(ServedRates.of(given))
    found = speeds.speeds()
    for operator, node, rate, _ in given:
        same = next(other for other in given if other[0] == operator)
        assert found[node] / found[same[1]] == pytest.approx(rate / same[2], rel=1e-6)


def test_operators_on_one_node_each_leave_all_nodes_equal():
    speeds = NodeSpeeds()
    speeds.observe(ServedRates.of([("cheap", "a", 1e6, 1.0), ("dear", "b", 10.0, 1.0)]))
    assert speeds.speeds() == pytest.approx({"a": 1.0, "b": 1.0})


def test_node_that_was_slow_once_is_forgiven_over_periods():
    speeds = NodeSpeeds(memory=0.5)
    speeds.observe(ServedRates.of([("op", "a", 100.0, 1.0), ("op", "b", 25.0, 1.0)]))
    slow = speeds.speeds()["b"]
    for _ in range(10):
        speeds.observe(ServedRates.of([("op", "a", 100.0, 1.0), ("op", "b", 100.0, 1.0)]))
    assert slow < 0.8
    assert speeds.speeds()["b"] == pytest.approx(1.0, abs=0.02)


def test_little_work_changes_a_speed_less_than_much():
    def slow(weight):
        speeds = NodeSpeeds()
        speeds.observe(ServedRates.of([("op", "a", 100.0, weight), ("op", "b", 50.0, weight)]))
        return speeds.speeds()["b"]

    assert slow(4.0) < slow(0.1) < 1.0


def test_speeds_are_bounded_and_idle_executors_are_no_hint():
    speeds = NodeSpeeds(memory=0.0, doubt=0.0)
    speeds.observe(ServedRates.of([("op", "a", 1e6, 1.0), ("op", "b", 1.0, 1.0), ("op", "c", 5.0, 0.0)]))
    assert speeds.speeds() == {"a": FASTEST, "b": SLOWEST}


def test_nodes_and_operators_without_rates_are_forgotten():
    speeds = NodeSpeeds(memory=0.5)
    speeds.observe(ServedRates.of([("old", "gone", 100.0, 1.0), ("old", "stays", 50.0, 1.0)]))
    for _ in range(30):
        speeds.observe(ServedRates.of([("new", "stays", 80.0, 1.0)]))
    assert speeds.speeds() == pytest.approx({"stays": 1.0})


def test_no_rates_give_no_speeds():
    speeds = NodeSpeeds()
    speeds.observe(ServedRates.of([]))
    assert speeds.speeds() == {}

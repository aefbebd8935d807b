"""Numbers that overflow, or keep a search busy for ever, are refused by name; narrow integers count as wide ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import fair_shares
from dask_elastic.model.jackson import allocate, expected_latency
from dask_elastic.model.queueing import mmk_sojourn
from dask_elastic.planning.balance import balance
from dask_elastic.planning.cores import assign_cores, migration_cost
from dask_elastic.planning.cores.surplus import release
from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.node_trace import nodes_needed
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.placement.grouping import (
    PartialKeyGrouping,
    candidates,
    consistent_hash,
    expansion,
    universal_hash,
)
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.registry import planner
from dask_elastic.topology.fusion import fuse
from dask_elastic.vocab.errors import PlanningError, TopologyError
from dask_elastic.windows.consolidation import plan
from dask_elastic.windows.cost_model import sharing
from dask_elastic.windows.window import Window

HUGE = 2**62
WHOLE = [0, 0, 1, 1]

REFUSED = {
    "cores wanted": (lambda: assign_cores([[1, 1]], [2**63, 1], [4], [1.0, 1.0], [0, 0], [0, 0]), "wanted adds up to"),
    "capacities": (lambda: assign_cores([[1], [0], [0]], [2], [HUGE] * 3, [1.0], [0], [0]), "capacity adds up to"),
    "cores held": (lambda: assign_cores([[2**40], [0]], [1], [1, 9], [1.0], [0], [0]), "current adds up to"),
    "home": (lambda: assign_cores([[1]], [1], [1], [1.0], [2**63], [0]), "home contains 9223372036854775808"),
    "state": (lambda: assign_cores([[1, 1]], [1, 1], [4], [1e308] * 2, [0, 0], [0, 0]), "state_bytes adds up to"),
    "threshold": (lambda: assign_cores([[1]], [2], [4], [1.0], [0], [0], 10**400), "threshold is 1000"),
    "cores moved": (lambda: migration_cost([[HUGE]] * 3, [[1]] * 3, [1]), "old adds up to"),
    "cores released": (lambda: release([[0], [2**40]], [1], [1.0], [0]), "current adds up to"),
    "interval loads": (lambda: single_step([1e308] * 4, [1] * 4, [[0, 4]], 2, 0.2), "load adds up to"),
    "interval state": (lambda: single_step([1] * 4, [1e308] * 4, [[0, 4]], 2, 0.2), "state_bytes adds up to"),
    "interval tau": (lambda: single_step([1] * 4, [1] * 4, [[0, 4]], 2, 1e308), r"tau is 1e\+308"),
    "interval nodes": (lambda: single_step([1] * 4, [1] * 4, [[0, 4]], 2**40, 1), "nodes is 1099511627776"),
    "least tau": (lambda: least_tau([1e308] * 4, 2), "load adds up to"),
    "counts": (lambda: nodes_needed([1e308, 0.0]), "counts adds up to"),
    "most nodes": (lambda: nodes_needed([1, 2], least=1, most=2**70), "nodes is 1180591620717411303424"),
    "target of no instance": (lambda: expansion([1, 2], [0, None]), "target has type object"),
    "target of text": (lambda: expansion([1, 2], ["a", "b"]), "target has type <U1"),
    "instances": (lambda: consistent_hash(WHOLE, 2**40), "instances is 1099511627776"),
    "replicas": (lambda: consistent_hash(WHOLE, 2**12, 2**20), "replicas is 1048576"),
    "seed of a ring": (lambda: consistent_hash(WHOLE, 4, seed=2**64), "seed is 18446744073709551616"),
    "instances of a function": (lambda: universal_hash(WHOLE, 2**64), "instances is 18446744073709551616"),
    "instances of partial keys": (lambda: PartialKeyGrouping(2**60), "instances is 1152921504606846976"),
    "share of a hot key": (lambda: PartialKeyGrouping(4, 2, 3, 5e-324), "hot_share is 5e-324"),
    "choices": (lambda: candidates(WHOLE, 2**20, 2**20), "choices is 1048576"),
    "balance": (lambda: balance([1, 2], [0, 0], [0, 1], threshold=10**400), "threshold is 1000"),
    "servers": (lambda: mmk_sojourn(3, 2, 2**31), "servers is 2147483648"),
    "arrival": (lambda: mmk_sojourn(10**400, 2, 3), "arrival is 1000"),
    "available": (lambda: allocate(10, [1e12], [1.0], 1e20, HUGE), "available is 4611686018427387904"),
    "target of latency": (lambda: allocate(10, [1.0], [1.0], 10**400, 20), "latency_target is 1000"),
    "weights": (lambda: expected_latency(1, [1e3] * 2, [1] * 2, [2000] * 2, weight=[1e305] * 2), "weight adds up to"),
    "cores of a queue": (lambda: expected_latency(1, [1], [1], [1e300]), r"cores is 1e\+300"),
    "windows": (lambda: plan([Window(0, 10**9, 1), Window(0, 7, 3)], 1, horizon=1000), "windows have one of length"),
    "sharing": (lambda: sharing(plan([Window.tumbling(5)], 5), 1e308, 1, 1), r"rate is 1e\+308"),
    "bins": (lambda: PlacementProblem([1], current=[0], bins=HUGE), "bins is 4611686018427387904"),
    "loads": (lambda: PlacementProblem([1e200, 1], current=[0, 0], bins=2), "load adds up to"),
    "capacity": (lambda: PlacementProblem([1], [0], bins=2, capacity=[5e-324, 1]), "capacity of bin 0 is below 1e-150"),
    "shares": (lambda: fair_shares([HUGE], [1], HUGE), "available is 4611686018427387904"),
    "needed": (lambda: fair_shares([None], [1], 3), r"needed is \[None\]"),
    "setting of text": (lambda: ControlSettings(cooldown="5"), "cooldown is '5'"),
    "setting": (lambda: ControlSettings(cooldown=10**400), "cooldown is 1000"),
    "seed of settings": (lambda: ControlSettings(seed=0.5), "seed is 0.5"),
    "seed of a planner": (
        lambda: planner("consistent-hash").plan(PlacementProblem([1], current=[0], bins=2), seed=2**64),
        "seed is 18446744073709551616",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_number_out_of_range_is_refused_by_name(name):
    call, message = REFUSED[name]
    with pytest.raises(PlanningError, match=message):
        call()


def test_fusion_refuses_what_it_cannot_use():
    with pytest.raises(TopologyError, match=r"attributes of 0 has \[1\]"):
        fuse({0: [[1]]}, {})
    with pytest.raises(TopologyError, match="seed is -1"):
        fuse({0: {1}, 1: {1}}, {(0, 1): 1}, "baseline", seed=-1)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8])
def test_narrow_integers_equal_those_of_python(kind):
    hashes, loads = list(range(60)), [1, 2, 3, 1] * 3
    given, seed = kind(100), kind(120)
    assert consistent_hash(hashes, given, given, seed).tolist() == consistent_hash(hashes, 100, 100, 120).tolist()
    assert universal_hash(hashes, given, seed).tolist() == universal_hash(hashes, 100, 120).tolist()
    assert candidates(hashes, given, kind(3), seed).tolist() == candidates(hashes, 100, 3, 120).tolist()
    narrow, wide = PartialKeyGrouping(given, kind(2), kind(5), seed=seed), PartialKeyGrouping(100, 2, 5, seed=120)
    assert narrow.route(hashes).tolist() == wide.route(hashes).tolist()
    assert balance(loads, [0] * 12, [0, 1, 2], kind(2)) == balance(loads, [0] * 12, [0, 1, 2], 2)
    assert mmk_sojourn(kind(100), kind(90), kind(120)) == mmk_sojourn(100, 90, 120)


def test_least_tau_of_the_smallest_loads_is_found():
    assert math.isfinite(least_tau([5e-324, 0, 5e-324], 2))


def test_cores_within_the_limit_are_assigned():
    assert assign_cores([[1], [0]], [900], [1, 1000], [1.0], [0], [0]).assignment.sum() == 900

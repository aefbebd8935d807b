"""An argument of a wrong type is refused by name, or used as the equivalent that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.model.jackson import allocate, arrivals, expected_latency
from dask_elastic.model.queueing import mmk_sojourn
from dask_elastic.planning.balance import balance
from dask_elastic.planning.cores import assign_cores, migration_cost
from dask_elastic.planning.cores.surplus import release
from dask_elastic.planning.intervals.sequence import sequence
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import projected_costs, single_step_aware, transition_matrix
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.grouping import (
    PartialKeyGrouping,
    candidates,
    consistent_hash,
    expansion,
    universal_hash,
)
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import (
    collocation,
    imbalance,
    load_distance,
    load_index,
    moved_bytes,
    variance,
)
from dask_elastic.planning.registry import names, planner
from dask_elastic.topology.fusion import fuse
from dask_elastic.vocab.errors import PlanningError, TopologyError
from dask_elastic.windows.consolidation import plan
from dask_elastic.windows.cost_model import sharing
from dask_elastic.windows.window import Window

STRANGE = {
    "text": "abc",
    "texts": ["a", "b"],
    "nothing": None,
    "ragged": [[1, 2], [3]],
    "a hole": [1.0, None],
    "an object": object(),
    "a dict": {"a": 1},
    "nan": float("nan"),
    "negative": -1,
    "complex": 1j,
    "deep": [[[1.0]]],
    "bytes": b"x",
    "infinite": float("inf"),
}

PROBLEM = PlacementProblem(load=[2, 1, 1], current=[0, 0, 1], bins=2)
COSTS = projected_costs([1, 1], [1, 1], {1: {2: 1.0}}, 0.2, 0.5)
STEP = {"load": [1, 1], "state_bytes": [1, 1], "intervals": [[0, 2]], "tau": 0.2}
WINDOWS = [Window.tumbling(2), Window.tumbling(4)]
HASHES = np.arange(4, dtype=np.uint64)
LOAD = {"tuples": 10.0, "rate": 10.0}

CALLS = {
    mmk_sojourn: {"arrival": 1.0, "service": 2.0, "servers": 1},
    expected_latency: {"external": 1.0, "arrival": [1, 1], "service": [2, 2], "cores": [1, 1], "weight": [1, 1]},
    allocate: {
        "external": 1.0, "arrival": [1, 1], "service": [2, 2], "latency_target": 2.0, "available": 4, "weight": [1, 1],
    },
    arrivals: {"external_by_operator": [1, 0], "routing": [[0, 1], [0, 0]]},
    migration_cost: {"old": [[1, 0]], "new": [[0, 1]], "state_bytes": [1, 1]},
    assign_cores: {
        "current": [[1, 1]], "wanted": [1, 2], "capacity": [4], "state_bytes": [1, 1], "home": [0, 0],
        "intensity": [0, 0], "threshold": 1.0, "doublings": 2,
    },
    release: {"current": [[2, 1]], "wanted": [1, 1], "state_bytes": [1, 1], "home": [0, 0]},
    balance: {
        "load": [2, 1], "owner": [0, 0], "tasks": [0, 1], "threshold": 1.2, "node_of_task": {0: "a", 1: "b"},
    },
    PlacementProblem: {
        "load": [2, 1], "current": [0, 1], "bins": 2, "state_bytes": [1, 1], "capacity": [4, 4], "draining": [1],
        "traffic": np.eye(2), "operator": [0, 1], "history": [[2, 1]], "max_moves": 1, "max_cost": 1.0,
    },
    validate: {"problem": PROBLEM, "placement": planner("flux").plan(PROBLEM)},
    single_step: STEP | {"nodes": 2, "allow_empty": True},
    sequence: STEP | {"nodes_sequence": [2, 1]},
    single_step_aware: STEP | {"nodes": 2, "projected": COSTS},
    projected_costs: {
        "load": [1, 1], "state_bytes": [1, 1], "matrix": {1: {2: 1.0}}, "tau": 0.2, "discount": 0.5, "tolerance": 1e-6,
    },
    transition_matrix: {"node_counts": [1, 2, 1]},
    COSTS.cost: {"tasks_per_interval": [1, 1]},
    fuse: {"attributes": {"a": {1}, "b": {1}}, "rates": {("a", "b"): 1.0}, "score": "communication"},
    plan: {"windows": WINDOWS, "slice": 1, "horizon": 4, "keys": {1: 1, 2: 1, 4: 1}},
    sharing: {"plan": plan(WINDOWS, 1), "rate": 1.0, "tuple_cost": 1.0, "merge_cost": 1.0},
    universal_hash: {"hashes": HASHES, "instances": 2, "seed": 0, "substreams": 8},
    consistent_hash: {"hashes": HASHES, "instances": 2, "replicas": 2, "seed": 0},
    candidates: {"hashes": HASHES, "instances": 2, "choices": 2, "seed": 0},
    expansion: {"hashes": HASHES, "target": [0, 1, 0, 1]},
    PartialKeyGrouping: {"instances": 2},
    PartialKeyGrouping(2).route: {"hashes": HASHES},
    load_distance: {"problem": PROBLEM, "bin": [0, 1, 1]},
    imbalance: {"problem": PROBLEM, "bin": [0, 1, 1]},
    variance: {"problem": PROBLEM, "bin": [0, 1, 1]},
    moved_bytes: {"problem": PROBLEM, "bin": [0, 1, 1]},
    collocation: {"problem": PROBLEM, "bin": [0, 1, 1]},
    load_index: {"problem": PROBLEM, "bin": [0, 1, 1], "communication": 1.0},
    Window: {"start": 0, "length": 2, "frequency": 2},
}  # fmt: skip
OF_OURS = {"problem", "placement", "projected", "plan"}
"""Arguments that are objects of this library; another type raises Python's own error."""
CASES = [(call, name) for call, given in CALLS.items() for name in given if name not in {*OF_OURS, "allow_empty"}]


@pytest.mark.parametrize(("call", "name"), CASES, ids=lambda one: getattr(one, "__qualname__", one))
def test_value_of_a_wrong_type_is_a_planning_error(call, name):
    refused = 0
    call(**CALLS[call])
    for value in STRANGE.values():
        try:
            call(**(CALLS[call] | {name: value}))
        except (PlanningError, TopologyError):
            refused += 1
    assert refused >= len(STRANGE) // 2


OPTIONS = [(one, option) for one in names("placement") for option in planner(one).__dataclass_fields__]


@pytest.mark.parametrize(("one", "option"), OPTIONS)
def test_planner_option_of_a_wrong_type_is_a_planning_error(one, option):
    messages = []
    for value in STRANGE.values():
        try:
            planner(one, **{option: value})
        except PlanningError as error:
            messages.append(str(error))
    assert all(option in message for message in messages)
    assert len(messages) >= len(STRANGE) // 2

"""A simulated checkpoint for other numbers of executors: each group is with the state of its last owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint.restore import SHARD
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.simulator import Placement, SimulatedCheckpoint, World
from dask_elastic.simulator.checkpoints import ExecutorCut
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.identity import ExecutorId


def spread(world: World, checkpoint: SimulatedCheckpoint, wanted: Mapping[str, int]) -> SimulatedCheckpoint:
    """Return a checkpoint as a job begins from it that has other numbers of executors."""
    executors: dict[ExecutorId, ExecutorCut] = {}
    for name, count in wanted.items():
        before = range(len(world.placement.homes[name]))
        owned = {one: checkpoint.executors[ExecutorId(name, one)].groups or () for one in before}
        space = world.spaces[name]
        table = GroupTable.spread(space.shards, [0] * count, owned)
        for compute in world.components[name].computes:
            cuts = {one: checkpoint.executors[ExecutorId(compute.name, one)] for one in before}
            for executor in range(count):
                executors[ExecutorId(compute.name, executor)] = _taken(space, cuts, owned, table.owned_by(executor))
    return replace(checkpoint, executors=executors)


def placed(world: World, wanted: Mapping[str, int]) -> Placement:
    """Return the placement with other numbers of executors, whose homes are where the first one was."""
    placement = world.placement
    homes = {name: (placement.homes[name][0],) * count for name, count in wanted.items()}
    cores = {name: tuple({node: 1} for node in nodes) for name, nodes in homes.items()}
    return replace(placement, homes={**placement.homes, **homes}, cores=cores)


def _taken(
    space: KeySpace, cuts: Mapping[int, ExecutorCut], owned: Mapping[int, tuple[int, ...]], groups: tuple[int, ...]
) -> ExecutorCut:
    store = KeyedStore(space.shards, space.shard_of)
    for one, own in owned.items():
        state = cuts[one].state
        if state is not None:
            store.install(state.filter(pa.array(np.isin(state.column(SHARD), [*{*groups}.intersection(own)]))))
    # They differ if one executor has got an event time while an input was idle, and another one afterwards.
    times = [cut.event_time for cut in cuts.values()]
    event_time = None if None in times else min(times)
    schema = next((cut.input_schema for cut in cuts.values() if cut.input_schema is not None), None)
    return ExecutorCut(store.extract(), None, schema, event_time, groups)

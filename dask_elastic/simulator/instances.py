"""Builds the sources, executors and sinks of a simulated job."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.windows.cells import grid_of
from dask_elastic.meters.edge_rows import EdgeRows
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.simulator.checkpoints import (
    CheckpointParts,
    ExecutorCut,
    SimulatedCheckpoint,
    SimulatedCheckpoints,
    SourceStanding,
)
from dask_elastic.simulator.executor_fibers import ExecutorFibers, FollowedExecutor
from dask_elastic.simulator.groups.group_fibers import FollowedGroupExecutor, GroupFibers, GroupSurroundings
from dask_elastic.simulator.homes.first_tier import FirstTier
from dask_elastic.simulator.sink import SimulatedSink
from dask_elastic.simulator.source import SimulatedSource
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute, SinkOperator, SourceOperator
from dask_elastic.vocab.identity import ExecutorId


class JobInstances(GroupSurroundings, Protocol):
    """A job that instances are added to; implemented by `World`."""

    restore: SimulatedCheckpoint
    durability: Durability
    timed: frozenset[str]
    tier: FirstTier
    spaces: dict[str, KeySpace]
    sources: dict[ExecutorId, SimulatedSource]
    homes: dict[ExecutorId, ExecutorFibers]
    sinks: dict[ExecutorId, SimulatedSink]
    open: set[ExecutorId]
    edge_rows: EdgeRows

    def error_policy(self) -> ErrorPolicy:
        """Return what happens to rows on which user code fails."""
        ...


class Durability:
    """What becomes of the checkpoints of a simulated job; as it is, tests read them, and sinks keep their rows.

    Parameters
    ----------
    parts : CheckpointParts, optional
        Takes what the instances contribute.
    """

    def __init__(self, parts: CheckpointParts | None = None):
        self.parts = SimulatedCheckpoints() if parts is None else parts

    def sink(self, world: JobInstances, identity: ExecutorId, inputs: Inputs) -> SimulatedSink:
        """Return a new instance of a sink."""
        return SimulatedSink(world, identity, inputs, world.restore.sinks.get(identity, ()))


def build_instances(world: JobInstances, component: Component) -> None:
    """Add the instances of a component to a world."""
    inputs = [i for upstream in component.inputs for i in world.placement.instances(upstream)]
    match component.operator:
        case SourceOperator() as operator:
            _build_sources(world, component, operator)
        case Compute():
            _build_executors(world, component)
        case SinkOperator():
            _build_sinks(world, component, inputs)


def _build_sources(world: JobInstances, component: Component, operator: SourceOperator) -> None:
    identities = world.placement.instances(component.name)
    for identity in identities:
        node = world.placement.node_of(identity)
        tables = partial(world.tier.groups_at, node)
        policy = world.error_policy()
        emitter = Emitter(component.name, component.outputs, world.spaces, policy, node, tables=tables)
        world.edge_rows.join(emitter.edge_rows)
        standing = world.restore.sources.get(identity, SourceStanding())
        world.sources[identity] = SimulatedSource(world, identity, operator, len(identities), emitter, standing)
        _add(world, identity)


def make_store(world: JobInstances, component: Component) -> PrimaryState:
    """Return a store for the state of an executor."""
    space = world.spaces[component.name]
    store = PrimaryState(space.shards, space.shard_of)
    store.hold(component.computes)
    return store


def make_executor(
    world: JobInstances,
    component: Component,
    identity: ExecutorId,
    node: int,
    cores: Mapping[int, int],
    store: PrimaryState | None = None,
) -> FollowedExecutor:
    """Return a new executor at a home, which has not started."""
    operator = component.operator
    assert isinstance(operator, Compute)
    inputs = [i for upstream in component.inputs for i in world.placement.instances(upstream)]
    table = world.tier.groups_at(node, component.name)
    make = FollowedExecutor if table is None else partial(FollowedGroupExecutor, groups=table.owned_by(identity.index))
    executor = make(
        identity,
        world.spaces[component.name],
        node,
        cores,
        inputs,
        limits=world.options.limits,
        timed=[i for i in inputs if i.component in world.timed],
        clocks=component.clocks,
        grid=grid_of(component.computes),
        delay=operator.delay,
        store=make_store(world, component) if store is None else store,
    )
    executor.divide_windows(component.computes)
    return executor


def _build_executors(world: JobInstances, component: Component) -> None:
    name = component.name
    for identity in world.placement.instances(name):
        node, cores = world.placement.node_of(identity), world.placement.cores[name][identity.index]
        cut = world.restore.executors.get(identity)
        first = cores if cut is None else {node: max(1, cores.get(node, 0))}
        executor = make_executor(world, component, identity, node, first)
        for operator, store in executor.store.stores(name).items():
            cut = world.restore.executors.get(ExecutorId(operator, identity.index))
            if cut is not None:
                executor.store.event_time = cut.event_time
                _restore(store, cut)
        executor.store.track_dirty = True
        if isinstance(executor, FollowedGroupExecutor):
            world.homes[identity] = GroupFibers(world, executor, component)
        else:
            world.homes[identity] = ExecutorFibers(world, executor, component)
        _add(world, identity)
        for fused in component.fused:
            world.checkpoints.add(ExecutorId(fused.name, identity.index))


def _restore(store: PrimaryState | FusedStore, cut: ExecutorCut) -> None:
    if cut.state is not None:
        store.install(cut.state)
        store.input_schema = cut.input_schema


def _build_sinks(world: JobInstances, component: Component, inputs: list[ExecutorId]) -> None:
    node_of = world.placement.node_of
    for node in sorted({node_of(i) for i in inputs}):
        identity = ExecutorId(component.name, node)
        here = [i for i in inputs if node_of(i) == node]
        timed_here = [i for i in here if i.component in world.timed]
        world.sinks[identity] = world.durability.sink(world, identity, Inputs(identity, here, timed_here))
        _add(world, identity)


def _add(world: JobInstances, identity: ExecutorId) -> None:
    world.open.add(identity)
    world.checkpoints.add(identity)

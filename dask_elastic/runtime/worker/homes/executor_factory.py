"""Makes the executors of a job that are at home on a node, and the remote tasks of others."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dask_elastic.executor.control_records.inputs import timed_components
from dask_elastic.executor.control_records.state_records import Grid
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.remote import RemotePart
from dask_elastic.executor.union_types import union_types
from dask_elastic.meters import EdgeRows, FunctionCosts
from dask_elastic.migration.strategy import LABELLED
from dask_elastic.runtime.protocol.job_spec import ELASTIC
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.groups.group_threads import GroupReports, GroupThreads
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.members import Members
from dask_elastic.runtime.worker.remote_threads import RemoteThreads
from dask_elastic.runtime.worker.stores.state_stores import StateStores
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints


class ExecutorFactory:
    """Makes the executors and the remote tasks of one job on this node.

    Parameters
    ----------
    members : Members
        The job's nodes.
    components : mapping of str to Component
        The topology's components.
    stores : StateStores
        The state on this node.
    threads : JobThreads
        Runs the threads.
    exchange : Exchange
        Carries batches, credit, control records and messages.
    checkpoints : PartCheckpoints or None
        The job's checkpoints, if it takes any.
    edge_rows : EdgeRows
        Counts the rows that are passed on.
    error_policy : callable
        Makes the error policy of a task.
    task_ended : callable
        Called when a task of an executor at home here has ended.
    finished : callable
        Called when an executor at home here has delivered its last output.
    depart : callable
        Hands an executor over to its next home.
    groups : GroupReports
        Takes what executors report whose key groups move.
    """

    def __init__(
        self,
        members: Members,
        components: Mapping[str, Component],
        stores: StateStores,
        threads: JobThreads,
        exchange: Exchange,
        checkpoints: PartCheckpoints | None,
        edge_rows: EdgeRows,
        error_policy: Callable[[], ErrorPolicy],
        task_ended: Callable[[], None],
        finished: Callable[[ExecutorId], None],
        depart: Callable[[ExecutorThreads], None],
        groups: GroupReports,
    ):
        self._members = members
        self._components = components
        self._spaces = members.tier.spaces
        self._groups = groups
        self._stores = stores
        self._threads = threads
        self._exchange = exchange
        self._checkpoints = checkpoints
        self._edge_rows = edge_rows
        self._error_policy = error_policy
        self._task_ended = task_ended
        self._finished = finished
        self._depart = depart
        self.timed = timed_components(components.values())

    def _operator(self, executor: ExecutorId) -> tuple[Component, Compute]:
        component = self._components[executor.component]
        assert isinstance(component.operator, Compute), f"{executor} has no state"
        return component, component.operator

    def store(self, identity: ExecutorId) -> PrimaryState:
        """Return a store for the state of an executor."""
        component, _ = self._operator(identity)
        space = self._spaces[identity.component]
        store = PrimaryState(space.shards, space.shard_of, threading.Lock)
        store.hold(component.computes)
        self._stores.place(component.computes, store)
        return store

    def executor(
        self, identity: ExecutorId, first: Mapping[int, int], store: PrimaryState | None = None
    ) -> ElasticExecutor:
        """Return a new executor at home here, which has not started.

        Parameters
        ----------
        identity : ExecutorId
            The executor.
        first : mapping of int to int
            Its first cores, by node.
        store : PrimaryState, optional
            Its state, in a store that `store` has returned.
        """
        component, operator = self._operator(identity)
        spec = self._members.spec
        options = spec.options
        table = self._members.tier.groups_of(identity.component)
        limits = ExecutorLimits(
            options.inbox_time,
            options.balance_threshold,
            light_load=options.light_load,
            gathers=options.gather_shards and options.paradigm == ELASTIC,
            first_takers=1 if component.aggregates_only else None,
            migration=LABELLED if table is not None else options.strategy(identity.component),
        )
        inputs = spec.inputs_of(identity.component)
        timed = [one for one in inputs if one.component in self.timed]
        place = (identity, self._spaces[identity.component], spec.node, first, inputs)
        due = (component.clocks, _grid(component), operator.delay)
        store = self.store(identity) if store is None else store
        parts = (*place, threading.Lock, limits, timed, *due, store)
        if table is None:
            executor = ElasticExecutor(*parts)
        else:
            executor = GroupExecutor(*parts, groups=table.owned_by(identity.index))
        executor.store.union = union_types(component, self._components)
        executor.divide_windows(component.computes)
        executor.recovery.keys = tuple(operator.keys)
        self._stores.add(identity, component.computes, executor.store)
        executor.task_ended = self._task_ended
        return executor

    def home(self, executor: ElasticExecutor) -> ExecutorThreads:
        """Return the threads of an executor at home here."""
        component, _ = self._operator(executor.identity)
        keeper = None if self._checkpoints is None else self._checkpoints.keeper
        parts = (component.computes, functools.partial(self._processor, component), self._threads, self._exchange)
        others = (self._finished, keeper, self._depart, self._members.tier.sinks_of(executor.identity))
        if isinstance(executor, GroupExecutor):
            return GroupThreads(executor, self._groups, *parts, *others)
        return ExecutorThreads(executor, *parts, *others)

    def remote(self, executor: ExecutorId, home: int, incarnation: int) -> RemoteThreads:
        """Return the remote tasks here of an executor at home on another node."""
        component, _ = self._operator(executor)
        part = RemotePart(executor, self._spaces[executor.component], threading.Lock, incarnation)
        self._stores.add(executor, component.computes, part.store)
        make_processor = functools.partial(self._processor, component)
        sinks = self._members.tier.sinks_of(executor)
        return RemoteThreads(part, make_processor, self._threads, self._exchange, home, sinks)

    def _processor(self, component: Component, task: int, store: ComponentStore, sinks: int) -> Processor:
        tables = self._members.tier.groups_of
        processor = Processor(component, task, store, self._spaces, self._error_policy(), sinks, tables)
        processor.costs = FunctionCosts(time.thread_time)
        processor.measure_windows(time.thread_time)
        processor.measure_computes(time.thread_time)
        rows = processor.emitter.edge_rows
        self._edge_rows.join(rows)
        processor.closed = functools.partial(self._edge_rows.leave, rows)
        return processor


def _grid(component: Component) -> Grid | None:
    """Return the event times at which a component needs state records; None for any, or none."""
    if not component.clocks:
        return None
    # Imported when used: most jobs have no windows.
    from dask_elastic.executor.windows.cells import grid_of

    return grid_of(component.computes)

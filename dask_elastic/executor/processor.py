"""How a task processes a batch, at home or remote: the logic, then the emitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.joins.asof_join import AsOfJoin
from dask_elastic.executor.joins.interval_join import IntervalJoin
from dask_elastic.executor.joins.make_join import make_join
from dask_elastic.executor.logic import Logic, make_logic, make_timers
from dask_elastic.executor.timer_logic import TimerLogic
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.batch import Batch, Delivery


class Processor:
    """Runs a component's logic for one task; belongs to that task's thread.

    Parameters
    ----------
    component : Component
        The component.
    task : int
        The task; only its shards are accessed.
    store : KeyedStore
        The store of the executor's tasks in this process.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.
    error_policy : ErrorPolicy
        Runs user code.
    home : int
        The executor's home, whose sink instances get its rows.

    Attributes
    ----------
    closed : callable
        Called when the task has ended.
    """

    def __init__(
        self,
        component: Component,
        task: int,
        store: KeyedStore,
        spaces: Mapping[str, KeySpace],
        error_policy: ErrorPolicy,
        home: int,
    ):
        operator = component.operator
        assert isinstance(operator, Compute)
        self.name = operator.name
        self.closed: Callable[[], None] = lambda: None
        self.error_policy = error_policy
        self.emitter = Emitter(component.name, component.outputs, spaces, error_policy, home)
        self.session = store.session(task)
        self.is_join = operator.join is not None
        self.logic: Logic
        self.timers: IntervalJoin | AsOfJoin | TimerLogic | None
        if operator.join is not None:
            self.logic = self.timers = make_join(operator, store, self.session, spaces[component.name])
        else:
            self.logic = make_logic(operator, store, self.session, self.emitter.has_outputs)
            self.timers = make_timers(operator, self.logic, store, self.session)

    def process(self, batch: Batch) -> list[Delivery]:
        """Process one batch, or one state record, as a unit and route its outputs."""
        if batch.record is not None:
            assert self.timers is not None, "only operators with timers, and joins, get such records"
            return self.emitter.emit(self.timers.fire(batch, self.error_policy), batch.stamp)
        rows, hashes = batch.rows, batch.hashes
        assert hashes is not None
        if self.is_join:
            # A join calls no user code, and an error after it has buffered rows must not process them again.
            return self.emitter.emit(self.logic.process(rows, hashes, batch.now), batch.stamp)

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == rows.num_rows:
                return self.logic.process(rows, hashes, batch.now, errors)
            return self.logic.process(rows.slice(start, stop - start), hashes[start:stop], batch.now, errors)

        return self.emitter.emit(self.error_policy.run(self.name, run, rows), batch.stamp)

    def close(self) -> None:
        """End the task's session with the store, and its cache of keys."""
        self.session.close()
        self.closed()

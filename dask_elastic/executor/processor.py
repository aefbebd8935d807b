"""How a task processes a batch, at home or remote: the logic, then the emitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from dask_elastic.executor.emitter import CurrentTable, Emitter
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.function_logic import FunctionLogic
from dask_elastic.executor.fused.compute_clock import ComputeClock
from dask_elastic.executor.fused.fused_compute import fused_computes
from dask_elastic.executor.groups.traffic_sampler import EVERY, TrafficSampler
from dask_elastic.executor.logic import AggregateLogic, FiringLogic, Logic, make_firing, make_logic
from dask_elastic.meters.group_flows import GroupFlows
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.chosen_rows import ChosenRows, EvaluationCosts
from dask_elastic.vocab.lock import Lock
from dask_elastic.vocab.state_record import PartialsMoved

if TYPE_CHECKING:
    from dask_elastic.executor.joins.asof_join import AsOfJoin
    from dask_elastic.executor.joins.interval_join import IntervalJoin
    from dask_elastic.executor.windows.make_windows import Windows
    from dask_elastic.executor.windows.window_functions import WindowFunctions
    from dask_elastic.executor.windows.window_logic import WindowLogic


class Processor:
    """Runs a component's logic for one task; belongs to that task's thread.

    Parameters
    ----------
    component : Component
        The component.
    task : int
        The task; only its shards are accessed.
    store : ComponentStore
        The store of the executor's tasks in this process.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.
    error_policy : ErrorPolicy
        Runs user code.
    home : int
        The executor's home, whose sink instances get its rows.
    tables : callable, optional
        As for `Emitter`.

    Attributes
    ----------
    closed : callable
        Called when the task has ended.
    costs : EvaluationCosts or None
        Decides how aggregates evaluate functions of rows that are not copied yet; None to copy their columns always.
    """

    def __init__(
        self,
        component: Component,
        task: int,
        store: ComponentStore,
        spaces: Mapping[str, KeySpace],
        error_policy: ErrorPolicy,
        home: int,
        tables: CurrentTable | None = None,
    ):
        operator = component.operator
        assert isinstance(operator, Compute)
        self.name = operator.name
        self.closed: Callable[[], None] = lambda: None
        self.costs: EvaluationCosts | None = None
        self.error_policy = error_policy
        self._spaces = spaces
        # Batches until a sampler is asked, if there is one: a call for each batch would cost as much as the samples.
        self._sampler: TrafficSampler | None = None
        self._until = 0
        self._fused = fused_computes(component, task, store, spaces, error_policy) if component.fused else {}
        self.emitter = Emitter(component.name, component.outputs, spaces, error_policy, home, self._fused, tables)
        self.session = store.session(task)
        self._clock = ComputeClock(store, task)
        self.logic: Logic
        self.join: IntervalJoin | AsOfJoin | None = None
        self.functions: WindowFunctions | None = None
        self.windows: Windows | None = None
        # The same, if they are windows over event time, which may share slices.
        self._event_windows: WindowLogic | None = None
        self.firing: FiringLogic | None
        if operator.windowing is not None or operator.join is not None:
            self._set_event_time_logic(operator, store, spaces[component.name])
        else:
            self.logic = make_logic(operator, store, self.session, self.emitter.has_outputs)
            self.firing = make_firing(operator, self.logic, store, self.session)
        # What reads rows that are not copied yet.
        self._reads_chosen = self.functions is None and (
            self._event_windows is not None or isinstance(self.logic, AggregateLogic)
        )
        for fused in self._fused.values():
            if fused.reads_first and self.functions is None:
                fused.follow(self.logic)

    def _set_event_time_logic(self, operator: Compute, store: ComponentStore, space: KeySpace) -> None:
        # Most jobs have neither windows nor joins, which are a tenth of what a worker would import to run them.
        if operator.join is not None:
            from dask_elastic.executor.joins.make_join import make_join

            self.logic = self.firing = self.join = make_join(operator, store, self.session, space)
        elif operator.function is not None:
            from dask_elastic.executor.windows.window_functions import WindowFunctions

            self.firing = self.functions = WindowFunctions(operator, store, self.session, space)
        else:
            from dask_elastic.executor.windows.count_logic import CountLogic
            from dask_elastic.executor.windows.make_windows import make_windows
            from dask_elastic.executor.windows.window_logic import WindowLogic

            windows = make_windows(operator, store, self.session, self.emitter.has_outputs, space.groups)
            self.logic = self.windows = windows
            self.firing = None if isinstance(windows, CountLogic) else windows
            self._event_windows = windows if isinstance(windows, WindowLogic) else None

    def measure_windows(self, clock: Callable[[], float]) -> None:
        """Measure what the partial results of windows of the first compute cost.

        Parameters
        ----------
        clock : callable
            Returns the CPU seconds of the thread.
        """
        if self._event_windows is not None:
            self._event_windows.clock = clock

    def measure_computes(self, clock: Callable[[], float]) -> None:
        """Measure how long each compute takes, if there are several.

        Parameters
        ----------
        clock : callable
            Returns the processor time of the task's thread, in seconds.
        """
        for one in (self._clock, *(fused.clock for fused in self._fused.values())) if self._fused else ():
            one.read = clock

    def sample_traffic(self, flows: GroupFlows, lock: Lock, clock: Callable[[], float]) -> None:
        """Sample the traffic from key groups; parameters are those of `TrafficSampler`."""
        self._sampler = TrafficSampler(flows, self.name, self._spaces, lock, clock)
        self._until = EVERY

    def process(self, batch: Batch) -> list[Delivery]:
        """Process one batch, or one state record, as a unit and route its outputs; in two parts for a sample."""
        self._until -= 1
        if not self._until:
            assert self._sampler is not None, "batches are counted for it"
            self._until = EVERY
            return self._sampler.process(batch, self.process)
        if isinstance(batch.record, PartialsMoved):
            assert self._event_windows is not None, "only windows whose partials can be merged hand them over"
            self._event_windows.merge(batch, self.error_policy)
            return []
        for fused in self._fused.values():
            fused.begin(batch)
        if batch.record is not None:
            if self._sampler is not None:
                self._sampler.note_record(batch.now)
            fired = [] if self.firing is None else self._clock.run(self.firing.fire, batch, self.error_policy)
            return self.emitter.fire(fired, batch)
        rows, hashes = self._rows(batch), batch.hashes
        assert hashes is not None
        if self.functions is not None:
            assert isinstance(rows, pa.RecordBatch)
            # It runs the function itself: rows that wait already must not be processed again.
            outputs = self.functions.process(rows, batch, self.error_policy)
            return self.emitter.emit(outputs, batch.stamp, self.functions.take_late())
        if self.join is not None:
            # A join calls no user code, and an error after it has buffered rows must not process them again.
            return self.emitter.emit(self.join.process(rows, hashes, settled=batch.settled), batch.stamp)
        # Which rows are late depends on the event time when they arrived.
        process = self.logic.process
        if self.windows is not None:
            process = partial(self.windows.process, reached=batch.reached, settled=batch.settled)
            if batch.separate or batch.side is not None:
                assert self._event_windows is not None, "only windows that share slices may cease to"
                process = partial(
                    self._event_windows.process,
                    reached=batch.reached,
                    settled=batch.settled,
                    separate=batch.separate,
                    side=batch.side,
                )
        elif isinstance(self.logic, FunctionLogic):
            process = partial(self.logic.process, reached=batch.reached)

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == rows.num_rows:
                return process(rows, hashes, batch.now, errors)
            return process(rows.slice(start, stop - start), hashes[start:stop], batch.now, errors)

        outputs = self._clock.run(self.error_policy.run, self.name, run, rows)
        late = () if self.windows is None else self.windows.take_late()
        return self.emitter.emit(outputs, batch.stamp, late)

    def _rows(self, batch: Batch) -> pa.RecordBatch | ChosenRows:
        rows = batch.rows
        if not isinstance(rows, ChosenRows):
            return rows
        if not self._reads_chosen:
            return rows.copied()
        rows.costs = self.costs
        return rows

    def close(self) -> None:
        """End the task's sessions with the stores, and their caches of keys."""
        self.session.close()
        for fused in self._fused.values():
            fused.close()
        self.closed()

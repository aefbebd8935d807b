"""A compute that runs in the tasks of another one: it gets that one's results by direct calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.function_logic import FunctionLogic
from dask_elastic.executor.fused.compute_clock import ComputeClock
from dask_elastic.executor.fused.typed_stream import TypedStream
from dask_elastic.executor.logic import AggregateLogic, FiringLogic, Logic, make_firing, make_logic
from dask_elastic.routing.hashing import checks_of
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.string_hashing import Words
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.fused.key_link import KeyLink
from dask_elastic.state.index import Slots
from dask_elastic.state.session import Located
from dask_elastic.topology.component import Branch, Component, Exit, Output
from dask_elastic.topology.operators import Compute, MapOperator
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.errors import SchemaMismatch

if TYPE_CHECKING:
    from dask_elastic.executor.windows.make_windows import Windows
    from dask_elastic.executor.windows.window_logic import WindowLogic


class FusedCompute:
    """Runs the logic of a fused compute for one task; belongs to that task's thread.

    Parameters
    ----------
    branch : Branch
        The compute and its consumers.
    component : Component
        The component.
    task : int
        The task; only its shards are accessed.
    store : ComponentStore
        The store of the executor's tasks in this process.
    space : KeySpace
        The component's key space.
    error_policy : ErrorPolicy
        Runs user code.
    declared_by : str, optional
        A function before it that declares to keep the columns by which rows are routed; None if it is certain.

    Attributes
    ----------
    reads_first : bool
        Whether it gets the results of the component's first compute, without another operator between them.
    clock : ComputeClock
        Measures the compute.
    """

    reads_first = False

    def __init__(
        self,
        branch: Branch,
        component: Component,
        task: int,
        store: ComponentStore,
        space: KeySpace,
        error_policy: ErrorPolicy,
        declared_by: str | None,
    ):
        operator = branch.operator
        assert isinstance(operator, Compute)
        self.name = operator.name
        self._store = store.behind(operator.name)
        self._session = self._store.session(task)
        self.clock = ComputeClock(self._store, task)
        groups = space.groups
        self._logic: Logic
        self._firing: FiringLogic | None
        self._windows: Windows | None = None
        # The same, if only the first compute of a component could change between slices and instances.
        self._separate: WindowLogic | None = None
        if operator.windowing is not None:
            self._set_windows(operator, _is_read(branch), groups)
        else:
            self._logic = make_logic(operator, self._store, self._session, _is_read(branch))
            self._firing = make_firing(operator, self._logic, self._store, self._session)
        self._stream = TypedStream(
            component.name, Exit(operator.name, operator.keys, operator.columns, operator.routed_by)
        )
        self._space = space
        self._error_policy = error_policy
        self._declared_by = declared_by
        self._before: AggregateLogic | None = None
        self._link = KeyLink(self._session)
        self._routed_by = operator.routed_by or operator.keys
        self._batch: Batch | None = None
        self._groups: npt.NDArray[np.bool_] | None = None

    def _set_windows(self, operator: Compute, is_read: bool, groups: int) -> None:
        # Imported when used: most jobs have no windows.
        from dask_elastic.executor.windows.count_logic import CountLogic
        from dask_elastic.executor.windows.make_windows import make_windows
        from dask_elastic.executor.windows.window_logic import WindowLogic

        windows = make_windows(operator, self._store, self._session, is_read, groups)
        self._logic = self._windows = windows
        self._firing = None if isinstance(windows, CountLogic) else windows
        if operator.windowing is not None and operator.windowing.separate_if_fixed:
            assert isinstance(windows, WindowLogic), "only windows that share slices may cease to"
            self._separate = windows

    @property
    def logic(self) -> Logic:
        """What processes its rows."""
        return self._logic

    def follow(self, logic: Logic) -> None:
        """Take rows directly from another compute's logic, whose keys may be known with their slots."""
        own = self._logic
        if isinstance(logic, AggregateLogic) and isinstance(own, AggregateLogic):
            same = logic.operator.keys == own.operator.keys and logic.operator.routed_by == own.operator.routed_by
            self._before = logic if same else None

    def begin(self, batch: Batch) -> None:
        """Begin a sub-batch of the component, or a state record.

        Parameters
        ----------
        batch : Batch
            What the first compute gets; a replay repeats its times.
        """
        self._batch = batch
        self._groups = None
        if self._declared_by is not None and batch.hashes is not None and batch.record is None:
            self._groups = np.zeros(self._space.groups, np.bool_)
            self._groups[self._space.group_of(batch.hashes)] = True

    def process(self, rows: pa.RecordBatch, producer: str) -> list[pa.RecordBatch]:
        """Process results of the operator before it.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        producer : str
            The operator that made them.

        Returns
        -------
        list of RecordBatch
            What the compute emits.

        Raises
        ------
        SchemaMismatch
            When the rows have other columns or types than before, or belong to another task.
        """
        return self.clock.run(self._process, rows, producer)

    def _process(self, rows: pa.RecordBatch, producer: str) -> list[pa.RecordBatch]:
        fitted = self._stream.fitted(rows, producer)
        if self._store.input_schema is None:
            self._store.input_schema = fitted.schema
        made = None if self._before is None else self._before.made
        before = None if made is None or made[0] is not rows else made[1]
        if before is not None and (found := self._update_known(fitted, before)) is not None:
            return found
        hashes = self._stream.hashes(fitted, self._space)
        self._check_groups(hashes)
        batch = self._batch
        assert batch is not None, "a sub-batch has begun"
        process = self._logic.process
        if self._windows is not None:
            # What a state record fires comes before its event time: the results are as late as those of rows before it.
            process = partial(self._windows.process, reached=batch.reached, settled=batch.settled)
            if self._separate is not None:
                process = partial(self._separate.process, reached=batch.reached, settled=batch.settled, separate=True)
        elif isinstance(self._logic, FunctionLogic):
            process = partial(self._logic.process, reached=batch.reached)

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == fitted.num_rows:
                return process(fitted, hashes, batch.now, errors)
            return process(fitted.slice(start, stop - start), hashes[start:stop], batch.now, errors)

        results = self._error_policy.run(self.name, run, fitted)
        own = self._logic
        if before is not None and self._links and isinstance(own, AggregateLogic) and own.located is not None:
            self._link.note(before, own.located)
        return results

    def take_late(self) -> list[pa.RecordBatch]:
        """Return the rows since the last call that came too late for its windows, or have no time."""
        return [] if self._windows is None else self._windows.take_late()

    @property
    def _links(self) -> bool:
        """Whether there is memory for the slots of all keys: the state of neither compute is on disk."""
        stores = (self._store, self._before.store) if self._before is not None else ()
        return not any(store.storage.on_disk for store in stores)

    def _update_known(self, rows: pa.RecordBatch, before: Located) -> list[pa.RecordBatch] | None:
        """Process rows whose keys are known by their slots in the store of the compute before; None if some are not."""
        logic, keys = self._logic, self._stream.keys
        assert isinstance(logic, AggregateLogic)

        def again() -> tuple[int, Slots]:
            hashes, checks = self._stream.hashes(rows, self._space), checks_of(rows, keys, logic.operator.keys)
            return self._store.admit(
                self._session.task, rows, logic.operator.keys, np.arange(rows.num_rows), hashes, checks
            )

        bound = logic.bound_to(rows.schema)
        located = None if bound is None else self._link.located(before, again)
        if bound is None or located is None:
            return None
        known, of_keys = bound, located

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == rows.num_rows:
                return logic.update(known, rows, of_keys)
            part = rows.slice(start, stop - start)
            return logic.process(part, self._stream.hashes(part, self._space), 0.0, errors)

        return self._error_policy.run(self.name, run, rows)

    def fire(self, batch: Batch) -> list[pa.RecordBatch]:
        """Fire the timers that a state record makes due, or close windows, after the computes before it have.

        Parameters
        ----------
        batch : Batch
            The record.

        Returns
        -------
        list of RecordBatch
            What the compute emits.
        """
        if self._firing is None:
            return []
        record = batch._replace(rows=self._addressed(batch.rows))
        return self.clock.run(self._firing.fire, record, self._error_policy)

    def _addressed(self, rows: pa.RecordBatch | ChosenRows) -> pa.RecordBatch:
        """Return the rows of a record with the schema of this compute's input instead of that of the first one."""
        assert isinstance(rows, pa.RecordBatch)
        schema = self._store.input_schema
        described = None if schema is None else {INPUT_SCHEMA: schema.serialize().to_pybytes()}
        return rows.replace_schema_metadata(described)

    def _check_groups(self, hashes: Words) -> None:
        """Check that no row has values that belong to the shards of other rows."""
        if self._groups is not None and not self._groups[self._space.group_of(hashes)].all():
            columns = ", ".join(map(repr, self._routed_by))
            raise SchemaMismatch(
                f"{self._declared_by!r} declares keeps= for {columns}, but changes values, so that rows for compute "
                f"{self.name!r} are in the wrong task. Correct the function, or remove keeps=."
            )

    def close(self) -> None:
        """End the task's session with the store."""
        self._session.close()


def _is_read(branch: Branch) -> bool:
    """Return whether something reads the results of a compute, apart from rows that come too late for its windows."""
    return any(not (isinstance(then, Branch) and isinstance(then.operator, LateRows)) for then in branch.then)


def fused_computes(
    component: Component,
    task: int,
    store: ComponentStore,
    spaces: Mapping[str, KeySpace],
    error_policy: ErrorPolicy,
) -> dict[str, FusedCompute]:
    """Return what runs the computes behind the first one of a component.

    Parameters
    ----------
    component : Component
        The component.
    task, store, error_policy
        As for `FusedCompute`.
    spaces : mapping of str to KeySpace
        Key space of each stateful component.

    Returns
    -------
    dict of str to FusedCompute
        By name, in the order in which rows reach them.
    """
    first = component.operator
    assert isinstance(first, Compute)
    declared = first.name if first.aggregates is None else None
    made: dict[str, FusedCompute] = {}
    for branch, declared_by, producer in _branches(component.outputs, declared, first.name):
        compute = FusedCompute(branch, component, task, store, spaces[component.name], error_policy, declared_by)
        compute.reads_first = producer == first.name
        if producer in made:
            compute.follow(made[producer].logic)
        made[compute.name] = compute
    return made


def _branches(
    outputs: tuple[Output, ...], declared_by: str | None, producer: str
) -> Iterator[tuple[Branch, str | None, str]]:
    """Yield the fused computes, each with a function before it that declares what it keeps, and the operator before."""
    for output in outputs:
        if not isinstance(output, Branch):
            continue
        operator, after = output.operator, declared_by
        if isinstance(operator, Compute):
            yield output, declared_by, producer
            after = operator.name if operator.aggregates is None else declared_by
        elif isinstance(operator, MapOperator):
            after = operator.name
        yield from _branches(output.then, after, operator.name)

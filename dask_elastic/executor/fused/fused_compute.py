"""A compute that runs in the tasks of another one: it gets that one's results by direct calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.fused.typed_stream import TypedStream
from dask_elastic.executor.logic import make_logic, make_timers
from dask_elastic.executor.timer_logic import TimerLogic
from dask_elastic.executor.windows.count_logic import CountLogic
from dask_elastic.executor.windows.session_logic import SessionLogic
from dask_elastic.executor.windows.window_logic import WindowLogic
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.string_hashing import Words
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Branch, Component, Exit, Output
from dask_elastic.topology.operators import Compute, MapOperator
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.errors import SchemaMismatch


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
    """

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
        groups = space.groups
        self._logic = logic = make_logic(operator, self._store, self._session, bool(branch.then), groups)
        self._windows = logic if isinstance(logic, WindowLogic | SessionLogic | CountLogic) else None
        self._firing: WindowLogic | SessionLogic | TimerLogic | None
        if isinstance(logic, WindowLogic | SessionLogic):
            self._firing = logic
        else:
            self._firing = make_timers(operator, logic, self._store, self._session)
        self._stream = TypedStream(
            component.name, Exit(operator.name, operator.keys, operator.columns, operator.routed_by)
        )
        self._space = space
        self._error_policy = error_policy
        self._declared_by = declared_by
        self._routed_by = operator.routed_by or operator.keys
        self._batch: Batch | None = None
        self._groups: npt.NDArray[np.bool_] | None = None

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
        fitted = self._stream.fitted(rows, producer)
        if self._store.input_schema is None:
            self._store.input_schema = fitted.schema
        hashes = self._stream.hashes(fitted, self._space)
        self._check_groups(hashes)
        batch = self._batch
        assert batch is not None, "a sub-batch has begun"
        process = self._logic.process
        if self._windows is not None:
            # What a state record fires comes before its event time: the results are as late as those of rows before it.
            process = partial(self._windows.process, reached=batch.reached, settled=batch.settled)

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == fitted.num_rows:
                return process(fitted, hashes, batch.now, errors)
            return process(fitted.slice(start, stop - start), hashes[start:stop], batch.now, errors)

        return self._error_policy.run(self.name, run, fitted)

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
        return self._firing.fire(batch._replace(rows=self._addressed(batch.rows)), self._error_policy)

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
    return {
        branch.operator.name: FusedCompute(
            branch, component, task, store, spaces[component.name], error_policy, declared_by
        )
        for branch, declared_by in _branches(component.outputs, declared)
    }


def _branches(outputs: tuple[Output, ...], declared_by: str | None) -> Iterator[tuple[Branch, str | None]]:
    """Yield the fused computes, each with a function before it that declares what it keeps."""
    for output in outputs:
        if not isinstance(output, Branch):
            continue
        operator, after = output.operator, declared_by
        if isinstance(operator, Compute):
            yield output, declared_by
            after = operator.name if operator.aggregates is None else declared_by
        elif isinstance(operator, MapOperator):
            after = operator.name
        yield from _branches(output.then, after)

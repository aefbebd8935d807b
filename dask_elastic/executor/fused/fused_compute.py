"""A compute that runs in the tasks of another one: it gets that one's results by direct calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.fused.typed_stream import TypedStream
from dask_elastic.executor.logic import make_logic
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.string_hashing import Words
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.topology.component import Branch, Component, Exit, Output
from dask_elastic.topology.operators import Compute, MapOperator
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
        self._logic = make_logic(operator, self._store, self._session, bool(branch.then))
        self._stream = TypedStream(
            component.name, Exit(operator.name, operator.keys, operator.columns, operator.routed_by)
        )
        self._space = space
        self._error_policy = error_policy
        self._declared_by = declared_by
        self._routed_by = operator.routed_by or operator.keys
        self._now = 0.0
        self._groups: npt.NDArray[np.bool_] | None = None

    def begin(self, hashes: Words, now: float) -> None:
        """Begin a sub-batch of the component.

        Parameters
        ----------
        hashes : ndarray of uint64
            The hashes of its rows, as the first compute gets them.
        now : float
            The time at which it is processed; a replay repeats it.
        """
        self._now = now
        if self._declared_by is not None:
            self._groups = np.zeros(self._space.groups, np.bool_)
            self._groups[self._space.group_of(hashes)] = True

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

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            if start == 0 and stop == fitted.num_rows:
                return self._logic.process(fitted, hashes, self._now, errors)
            return self._logic.process(fitted.slice(start, stop - start), hashes[start:stop], self._now, errors)

        return self._error_policy.run(self.name, run, fitted)

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

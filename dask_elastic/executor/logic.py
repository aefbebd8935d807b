"""Logic of a stateful component: mergeable aggregates, or a user function."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from dask_elastic.executor.function_logic import FunctionLogic, KeyFunctionLogic, RowFunctionLogic, schema_of_keys
from dask_elastic.routing.hashing import check_columns
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import check_schema


class Logic(Protocol):
    """Processes the rows of one task; not shared between threads."""

    def process(self, rows: pa.RecordBatch, hashes: np.ndarray, now: float) -> list[pa.RecordBatch]:
        """Update the state and return the output batches; `now` is the time at which state expires."""
        ...


def make_logic(operator: Compute, store: KeyedStore, session: Session, emits: bool) -> Logic:
    """Return the logic of an operator for one task.

    Parameters
    ----------
    operator : Compute
        The operator, as the user declared it.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    emits : bool
        Whether the output is read; otherwise aggregates make none.

    Returns
    -------
    Logic
        The logic.
    """
    if operator.aggregates is not None:
        return AggregateLogic(operator, store, session, emits)
    if isinstance(operator.logic, RowLogic):
        return RowFunctionLogic(operator.logic, operator, store, session)
    if isinstance(operator.logic, KeyLogic):
        return KeyFunctionLogic(operator.logic, operator, store, session)
    return FunctionLogic(operator, store, session)


class AggregateLogic:
    """Running aggregates: for each batch, the new value of every key in it."""

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, emits: bool):
        assert operator.aggregates is not None
        self.operator = operator
        self.store = store
        self.session = session
        self.emits = emits
        self._aggregates = operator.aggregates
        self._bound: tuple[pa.Schema, Bundle] | None = None

    def process(self, rows: pa.RecordBatch, hashes: np.ndarray, now: float = 0.0) -> list[pa.RecordBatch]:
        """Update the state and return one batch of new values, or none."""
        rows, bundle = self._fitted(rows)
        keys = self.operator.keys
        located = self.session.locate(rows, keys, hashes, check_columns(rows, keys))
        fields = self.session.apply(located, lambda current: bundle.update(current, rows, located.grouping))
        if not self.emits:
            return []
        results = bundle.results(fields)
        touched = rows.select(list(keys)).take(pa.array(located.first))
        columns = [*touched.columns, *results.values()]
        return [pa.RecordBatch.from_arrays(columns, names=[*keys, *results])]

    def _fitted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Bundle]:
        if self._bound is None:
            bundle = Bundle(self._aggregates, rows.schema)
            self.store.declare(schema_of_keys(rows.schema, self.operator.keys), bundle.fields)
            self._bound = rows.schema, bundle
        schema, bundle = self._bound
        if rows.schema is not schema and not rows.schema.equals(schema):
            rows = check_schema(schema, rows, f"the input of {self.operator.name!r}")
        return rows, bundle

"""Logic of a stateful component: mergeable aggregates, or a user function."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.function_logic import FunctionLogic, KeyFunctionLogic, RowFunctionLogic, schema_of_keys
from dask_elastic.executor.timer_logic import EventExpiry, TimerLogic
from dask_elastic.routing.hashing import checks_of
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import check_schema
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.row_bytes import is_light


class Logic(Protocol):
    """Processes the rows of one task; not shared between threads."""

    def process(
        self, rows: pa.RecordBatch, hashes: np.ndarray, now: float, errors: Errors | None = None
    ) -> list[pa.RecordBatch]:
        """Update the state and return the output batches; `now` is the time at which state expires.

        Logic that can tell which rows raise enters them in `errors` and processes all others, unless it is None.
        """
        ...


class FiringLogic(Protocol):
    """Processes the state records of one task; not shared between threads."""

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Process a record for the shards that it is addressed to; returns the output batches."""
        ...


def make_logic(operator: Compute, store: KeyedStore, session: Session, emits: bool, groups: int = 1) -> Logic:
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
    groups : int
        The number of groups of the component's key space.

    Returns
    -------
    Logic
        The logic.
    """
    if operator.windowing is not None:
        # Imported when used: most jobs have no windows.
        from dask_elastic.executor.windows.make_windows import make_windows

        return make_windows(operator, store, session, emits, groups)
    if operator.aggregates is not None:
        return AggregateLogic(operator, store, session, emits)
    assert operator.join is None, "make_join returns the logic of joins"
    if isinstance(operator.logic, RowLogic):
        return RowFunctionLogic(operator.logic, operator, store, session)
    if isinstance(operator.logic, KeyLogic):
        return KeyFunctionLogic(operator.logic, operator, store, session)
    return FunctionLogic(operator, store, session)


def make_firing(operator: Compute, logic: Logic, store: KeyedStore, session: Session) -> FiringLogic | None:
    """Return what processes the state records of an operator without windows for one task; None if it gets none."""
    if not isinstance(logic, FunctionLogic):
        return None
    timers = TimerLogic(operator, logic, store, session) if operator.timers else None
    return timers if operator.time is None else EventExpiry(logic, store, timers)


class AggregateLogic:
    """Running aggregates: for each batch, the new value of every key in it."""

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, emits: bool):
        assert operator.aggregates is not None
        self.operator = operator
        self.store = store
        self.session = session
        self.emits = emits
        self._aggregates = operator.aggregates
        self._bound: Bound | None = None
        # The last batch of results, and the keys of its rows: the next compute of a component may have the same.
        self.made: tuple[pa.RecordBatch, Located] | None = None
        self.located: Located | None = None

    def process(
        self, rows: pa.RecordBatch | ChosenRows, hashes: np.ndarray, now: float = 0.0, errors: Errors | None = None
    ) -> list[pa.RecordBatch]:
        """Update the state and return one batch of new values, or none."""
        bound = self._bound or self._bind(rows.schema)
        if not rows.schema.equals(bound.schema):
            rows = rows.copied() if isinstance(rows, ChosenRows) else rows
            rows = check_schema(bound.schema, rows, f"the input of {self.operator.name!r}")
        checks = checks_of(rows, bound.keys, self.operator.keys)
        return self.update(bound, rows, self.session.locate(rows, self.operator.keys, hashes, checks))

    def update(self, bound: Bound, rows: pa.RecordBatch | ChosenRows, located: Located) -> list[pa.RecordBatch]:
        """Update the state of located keys; as `process`."""
        results: list[pa.Array] = []

        def update(current: list[Column]) -> list[Column]:
            fields = bound.bundle.update(current, rows, located.grouping)
            if self.emits:
                # A result that raises leaves the state as it was: its rows may be processed again without others.
                results.extend(bound.bundle.results(fields).values())
            return fields

        self.made, self.located = None, located
        self.session.apply(located, update)
        if not self.emits:
            return []
        columns = _key_columns(rows, bound.keys, located)
        batch = pa.RecordBatch.from_arrays([*columns, *results], schema=bound.results)
        self.made = batch, located
        return [batch]

    def bound_to(self, schema: pa.Schema) -> Bound | None:
        """Return what depends on the schema of the input, if a batch of that schema has been processed."""
        return self._bound if self._bound is not None and schema.equals(self._bound.schema) else None

    def _bind(self, schema: pa.Schema) -> Bound:
        bundle = Bundle(self._aggregates, schema)
        self.store.declare(schema_of_keys(schema, self.operator.keys), bundle.fields)
        positions = [schema.get_field_index(key) for key in self.operator.keys]
        names = [*self.operator.keys, *bundle.schema.names]
        types = [*(schema.field(position).type for position in positions), *bundle.schema.types]
        self._bound = Bound(schema, bundle, positions, pa.schema([*zip(names, types, strict=True)]))
        return self._bound


def _key_columns(rows: pa.RecordBatch | ChosenRows, positions: list[int], located: Located) -> list[pa.Array]:
    """Return the key columns with one row of each located key."""
    if isinstance(rows, ChosenRows):
        return [rows.column_at(position, located.first) for position in positions]
    columns = [rows.column(position) for position in positions]
    if located.grouping.single:
        # The compute before has made the columns, and nothing else.
        return columns
    # If no key repeats, the rows are those of the keys, and most small columns need no copy.
    if len(located) == rows.num_rows and all(map(is_light, columns)):
        return columns
    first = array_of(located.first)
    return [column.take(first) for column in columns]


class Bound(NamedTuple):
    """What depends on the schema of the input: the aggregates, positions of the key columns, schema of the results."""

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema

"""Logic of user functions, at three levels: of a batch, of a key and its rows, or of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.routing.hashing import check_columns
from dask_elastic.state.cells import Cells
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.sweeper import Sweeper
from dask_elastic.state.view import StateView
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.topology.operators import Compute, as_batches
from dask_elastic.topology.tables import is_table

SWEPT_AFTER = 60.0
"""Seconds for which expired state is kept: a replay after a loss runs at the processing time of the first run."""


def schema_of_keys(schema: pa.Schema, keys: Iterable[str]) -> pa.Schema:
    """Return the key columns of a schema, in the order of the keys."""
    return pa.schema([schema.field(key) for key in keys])


class FunctionLogic:
    """A user's function of a batch and the state of its keys."""

    def __init__(self, operator: Compute, store: KeyedStore, session: Session):
        assert operator.function is not None
        self.operator = operator
        self.store = store
        self.session = session
        self.layout = StateLayout(operator.state or {})
        self.where = f"compute {operator.name!r}"
        self._sweeper = Sweeper(session, self.layout)
        self._function: Callable[..., Any] = operator.function
        self._declared = False

    def process(self, rows: pa.RecordBatch, hashes: np.ndarray, now: float) -> list[pa.RecordBatch]:
        """Call the function; its writes to the state take effect when it has returned."""
        keys = self.operator.keys
        if not self._declared:
            self.store.declare(schema_of_keys(rows.schema, keys), self.layout.fields)
            self._declared = True
        located = self.session.locate(rows, keys, hashes, check_columns(rows, keys))
        view = StateView(self.session, located, rows, keys, self.layout, now)
        outputs = self.outputs(rows, view)
        view.commit()
        self._sweeper.step(now - SWEPT_AFTER, len(view))
        return outputs

    def outputs(self, rows: pa.RecordBatch, view: StateView) -> list[pa.RecordBatch]:
        """Return the output batches of the function."""
        return as_batches(self._function(rows, view), self.where)


class RowFunctionLogic(FunctionLogic):
    """A user's function of a row and the state of its key."""

    def __init__(self, logic: RowLogic, operator: Compute, store: KeyedStore, session: Session):
        super().__init__(operator, store, session)
        self._function = logic.function
        self._output = DictRows(logic.output, self.where)

    def outputs(self, rows: pa.RecordBatch, view: StateView) -> list[pa.RecordBatch]:
        """Call the function row by row."""
        cells = Cells(view)
        made: list[Any] = []
        states = [cells.key(position) for position in range(len(view))]
        for number, (row, ordinal) in enumerate(zip(_dicts(rows), view.ordinals.tolist(), strict=True)):
            try:
                returned = self._function(row, states[ordinal])
                if returned is not None:
                    made += [returned] if isinstance(returned, Mapping) else self._output.listed(returned)
            except Exception as error:
                _note_row(error, number)
                raise
        cells.commit()
        return self._output.batches(made)


class KeyFunctionLogic(FunctionLogic):
    """A user's function of a key, its rows in the batch, and its state."""

    def __init__(self, logic: KeyLogic, operator: Compute, store: KeyedStore, session: Session):
        super().__init__(operator, store, session)
        self._function = logic.function
        self._output = DictRows(logic.output, self.where)

    def outputs(self, rows: pa.RecordBatch, view: StateView) -> list[pa.RecordBatch]:
        """Call the function key by key; the outputs of one key are together."""
        cells = Cells(view)
        made: list[pa.RecordBatch] = []
        waiting: list[Mapping[str, Any]] = []
        for position, (key, part) in enumerate(self._groups(rows, view)):
            returned = self._function(key, part, cells.key(position))
            for item in self._items(returned):
                if isinstance(item, Mapping):
                    waiting.append(item)
                    continue
                made += self._output.batches(waiting) + as_batches(item, self.where)
                waiting = []
        cells.commit()
        return made + self._output.batches(waiting)

    def _groups(self, rows: pa.RecordBatch, view: StateView) -> Iterator[tuple[Any, pa.RecordBatch]]:
        grouping = view.grouping
        ordered = rows if grouping.is_sorted else rows.take(pa.array(grouping.order))
        columns = [column.to_pylist() for column in view.keys.columns]
        keys: Iterable[Any] = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
        for key, start, size in zip(keys, grouping.starts.tolist(), grouping.sizes.tolist(), strict=True):
            yield key, ordered if size == ordered.num_rows else ordered.slice(start, size)

    def _items(self, returned: Any) -> Iterable[Any]:
        if returned is None:
            return ()
        if is_table(returned):
            return (returned,)
        return self._output.listed(returned)


class DictRows:
    """Converts rows that user code returned as dicts into batches.

    Parameters
    ----------
    schema : Schema, optional
        Columns of the rows; if None, those of the first rows, which all later rows must have.
    where : str
        The operator, for error messages.
    """

    def __init__(self, schema: pa.Schema | None, where: str):
        self._schema = schema
        self._declared = schema is not None
        self._where = where

    def listed(self, returned: Any) -> list[Any]:
        """Return an iterable of rows as a list.

        Raises
        ------
        TypeError
            If user code returned something else.
        """
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise TypeError(
                f"{self._where} returned {type(returned).__name__}; return a dict by column, an iterable of dicts, or "
                "None"
            )
        return list(returned)

    def batches(self, rows: list[Any]) -> list[pa.RecordBatch]:
        """Return the rows as one batch, or no batch if there are none.

        Raises
        ------
        TypeError
            If the rows have other columns or types than declared, or than the first rows.
        """
        if not rows:
            return []
        names = set(self._schema.names) if self._schema is not None else set(_dict(rows[0], self._where))
        for row in rows:
            if _dict(row, self._where).keys() != names and not (self._declared and row.keys() <= names):
                raise TypeError(
                    f"{self._where} returned a row with the columns {sorted(row)} where {sorted(names)} are expected; "
                    "name the columns and their types, as in @de.per_row(output={'change': pa.float64()})"
                )
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            origin = "declared" if self._declared else "of the first rows"
            raise TypeError(
                f"{self._where} returned rows that do not fit the columns {origin} ({_text(self._schema)}): {error}. "
                "Declare them with output=, as in @de.per_row(output={'change': pa.float64()})"
            ) from error
        self._schema = batch.schema
        return [batch]


def _dicts(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = rows.schema.names
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _dict(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TypeError(f"{where} returned {type(row).__name__} as a row; return a dict by column")
    return row


def _text(schema: pa.Schema | None) -> str:
    return "none yet" if schema is None else ", ".join(f"{field.name}: {field.type}" for field in schema)


def _note_row(error: Exception, number: int) -> None:
    """Note the row in the error, for the error policy, unless the error has one."""
    if not hasattr(error, "row"):
        error.row = number  # type: ignore[attr-defined]

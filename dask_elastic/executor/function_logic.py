"""Logic of user functions, at three levels: of a batch, of a key and its rows, or of a row."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import KEY, Errors, error_text
from dask_elastic.executor.row_search import RowSearch, is_failure_of_row
from dask_elastic.executor.windows.event_times import row_times
from dask_elastic.routing.hashing import check_columns
from dask_elastic.state.cells import Cells, KeyState
from dask_elastic.state.changes.undo_log import UndoLog
from dask_elastic.state.expiry.sweeper import Sweeper
from dask_elastic.state.layout import layout_of
from dask_elastic.state.session import Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.timer_bounds import TimerBounds
from dask_elastic.state.view import StateView
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.tables import as_batches, is_table
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.listed_arrays import batch_of_dicts
from dask_elastic.vocab.python_values import python_columns

SWEPT_AFTER = 60.0
"""Seconds for which expired state is kept: a replay after a loss runs at the processing time of the first run."""

_LONGEST_KEY = 100
"""Characters of a key that an error shows."""

LOGGED_BATCHES = 16
"""After a failing row, changes of the state are logged for this many batches, so that they need no second run."""


def schema_of_keys(schema: pa.Schema, keys: Iterable[str]) -> pa.Schema:
    """Return the key columns of a schema, in the order of the keys."""
    return pa.schema([schema.field(key) for key in keys])


class FunctionLogic:
    """A user's function of a batch and the state of its keys."""

    def __init__(
        self, operator: Compute, store: KeyedStore, session: Session, function: Callable[..., Any] | None = None
    ):
        assert operator.function is not None
        self.operator = operator
        self.store = store
        self.session = session
        self.layout = layout_of(operator)
        self.where = f"compute {operator.name!r}"
        self.timer_bounds = TimerBounds(self.layout, store)
        self._sweeper = Sweeper(session, self.layout)
        self._function: Callable[..., Any] = function or operator.function
        self._declared = False
        self.time = operator.time

    def process(
        self,
        rows: pa.RecordBatch,
        hashes: np.ndarray,
        now: float,
        errors: Errors | None = None,
        *,
        reached: int | None = None,
    ) -> list[pa.RecordBatch]:
        """Call the function; its writes to the state take effect when it has returned for all rows.

        State that expires in event time has expired by `reached`, the event time when the rows arrived.
        """
        keys = self.operator.keys
        if not self._declared:
            self.store.declare(schema_of_keys(rows.schema, keys), self.layout.fields)
            self._declared = True
        located = self.session.locate(rows, keys, hashes, check_columns(rows, keys))
        moments = None if self.time is None else row_times(rows, self.time, self.where)
        view = StateView(self.session, located, rows, keys, self.layout, now, reached, moments)
        outputs = self.outputs(rows, view, errors)
        view.commit(_processed_keys(view, errors) if errors else None)
        if self.layout.timers:
            self.timer_bounds.note(view)
        self._sweeper.step(now - SWEPT_AFTER, len(view))
        return outputs

    def sweep(self, reached: float, now: float, shards: np.ndarray) -> None:
        """Free some of the state that has expired, now that some shards have reached an event time."""
        self._sweeper.event_step(reached, now - SWEPT_AFTER, shards)

    def outputs(self, rows: pa.RecordBatch, view: StateView, errors: Errors | None) -> list[pa.RecordBatch]:
        """Return the output batches of the function, which has no row to blame for an error."""
        return as_batches(self._function(rows, view), self.where)


class CellLogic(FunctionLogic, ABC):
    """A user's function that is called several times per batch, each time with the state of one key.

    With `errors`, the changes of each call are logged, and undone if it raises. As logging takes time, a batch is first
    processed without it if no row of the previous batches has failed.
    """

    def __init__(self, logic: RowLogic | KeyLogic, operator: Compute, store: KeyedStore, session: Session):
        super().__init__(operator, store, session)
        self._function = logic.function
        self.output = DictRows(logic.output, self.where)
        self._logged_batches = 0

    def outputs(self, rows: pa.RecordBatch, view: StateView, errors: Errors | None) -> list[pa.RecordBatch]:
        """Call the function for each row or key."""
        if errors is None:
            return self.batches(self._unlogged(rows, view))
        items = None
        if self._logged_batches == 0:
            try:
                items = self._unlogged(rows, view)
            except Exception as error:  # the second run, with the log, reports it for its rows
                if not is_failure_of_row(error):
                    raise
                view.discard()
                self._logged_batches = LOGGED_BATCHES
        if items is None:
            cells = Cells(view, UndoLog())
            items = self.items(rows, view, cells, errors)
            self._logged_batches = LOGGED_BATCHES if errors else self._logged_batches - 1
            cells.commit()
        return self.batches(items)

    def _unlogged(self, rows: pa.RecordBatch, view: StateView) -> list[Any]:
        cells = Cells(view)
        items = self.items(rows, view, cells)
        cells.commit()
        return items

    @abstractmethod
    def items(self, rows: pa.RecordBatch, view: StateView, cells: Cells, errors: Errors | None = None) -> list[Any]:
        """Call the function for each row or key, up to the first error; with `errors`, for all that raise none.

        Parameters
        ----------
        rows : RecordBatch
            The batch.
        view : StateView
            Its keys.
        cells : Cells
            Their state; with a log if `errors` is given.
        errors : dict of int to str, optional
            Gets the rows on which the function raises.

        Returns
        -------
        list
            What the function has returned.
        """

    def batches(self, items: list[Any]) -> list[pa.RecordBatch]:
        """Return what `items` returned as batches."""
        return self.output.batches(items)


class RowFunctionLogic(CellLogic):
    """A user's function of a row and the state of its key."""

    def items(self, rows: pa.RecordBatch, view: StateView, cells: Cells, errors: Errors | None = None) -> list[Any]:
        """Call the function row by row; returns dicts."""
        log = cells.log
        made: list[Any] = []
        states = [cells.key(position) for position in range(len(view))]
        moments = view.times.rows.tolist() if self.layout.expires_in_event_time else None
        for number, (row, ordinal) in enumerate(zip(_dicts(rows), view.ordinals.tolist(), strict=True)):
            if moments is not None:
                view.times.call_at(moments[number])
            try:
                returned = self._function(row, states[ordinal])
                if returned is not None:
                    made += [returned] if isinstance(returned, Mapping) else self.output.listed(returned)
            except Exception as error:
                if log is None or errors is None or not is_failure_of_row(error):
                    note_row(error, number)
                    raise
                log.roll_back()
                errors[number] = error_text(error)
            if log is not None:
                log.keep()
        return made


class KeyFunctionLogic(CellLogic):
    """A user's function of a key, its rows in the batch, and its state."""

    def __init__(self, logic: KeyLogic, operator: Compute, store: KeyedStore, session: Session):
        super().__init__(logic, operator, store, session)
        self._search = RowSearch()

    def items(self, rows: pa.RecordBatch, view: StateView, cells: Cells, errors: Errors | None = None) -> list[Any]:
        """Call the function key by key; returns dicts and lists of batches."""
        made: list[Any] = []
        for position, (key, part) in enumerate(self._groups(rows, view)):
            state = cells.key(position)
            view.times.write_for(position)
            if cells.log is None or errors is None:
                try:
                    made += self._items(self._function(key, part, state))
                except Exception as error:
                    note_key(error, key)
                    raise
                continue
            items, failed = self._without_errors(key, part, state, cells.log)
            made += items
            if failed:
                start = int(view.grouping.starts[position])
                numbers = view.grouping.order[start : start + part.num_rows].tolist()
                errors.update((numbers[row], error) for row, error in failed.items())
        return made

    def _without_errors(
        self, key: Any, part: pa.RecordBatch, state: KeyState, log: UndoLog
    ) -> tuple[list[Any], Errors]:
        """Call the function for those rows of a key on which it does not raise; return their outputs and the errors."""
        items: list[Any] = []
        failed: Errors = {}

        def process(start: int, stop: int) -> None:
            chosen = part if stop - start == part.num_rows else part.slice(start, stop - start)
            try:
                items.extend(self._items(self._function(key, chosen, state)))
            except Exception:
                log.roll_back()
                raise
            log.keep()

        def skip(row: int, error: Exception) -> None:
            failed[row] = error_text(error)

        self._search.run(process, skip, part.num_rows)
        return items, failed

    def batches(self, items: list[Any]) -> list[pa.RecordBatch]:
        """Return the outputs as batches, in their order."""
        made: list[pa.RecordBatch] = []
        waiting: list[Mapping[str, Any]] = []
        for item in items:
            if isinstance(item, Mapping):
                waiting.append(item)
                continue
            made += self.output.batches(waiting) + item
            waiting = []
        return made + self.output.batches(waiting)

    def _groups(self, rows: pa.RecordBatch, view: StateView) -> Iterator[tuple[Any, pa.RecordBatch]]:
        grouping = view.grouping
        ordered = rows if grouping.is_sorted else rows.take(array_of(grouping.order))
        columns = python_columns(view.keys)
        keys: Iterable[Any] = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
        for key, start, size in zip(keys, grouping.starts.tolist(), grouping.sizes.tolist(), strict=True):
            yield key, ordered if size == ordered.num_rows else ordered.slice(start, size)

    def _items(self, returned: Any) -> list[Any]:
        if returned is None:
            return []
        if isinstance(returned, Mapping):
            return [returned]
        if is_table(returned):
            return [as_batches(returned, self.where)]
        listed = self.output.listed(returned, self.where)
        return [item if isinstance(item, Mapping) else as_batches(item, self.where) for item in listed]


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

    def listed(self, returned: Any, where: str | None = None) -> list[Any]:
        """Return an iterable of rows as a list; `where` names the function that returned it, if it is another one.

        Raises
        ------
        TypeError
            If user code returned something else.
        """
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise TypeError(
                f"{where or self._where} returned {type(returned).__name__}; return a dict by column, an iterable of "
                "dicts, or None"
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
            batch = batch_of_dicts(rows, self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            origin = "declared" if self._declared else "of the first rows"
            raise TypeError(
                f"{self._where} returned rows that do not fit the columns {origin} ({_text(self._schema)}): {error}. "
                "Declare them with output=, as in @de.per_row(output={'change': pa.float64()})"
            ) from error
        self._schema = batch.schema
        return [batch]


def _processed_keys(view: StateView, errors: Errors) -> np.ndarray:
    """Return which keys have a row that was processed; the others must not get any state."""
    processed = np.ones(len(view.ordinals), np.bool_)
    processed[[*errors]] = False
    keys = np.zeros(len(view), np.bool_)
    keys[view.ordinals[processed]] = True
    return keys


def _dicts(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = rows.schema.names
    for values in zip(*python_columns(rows), strict=True):
        yield dict(zip(names, values, strict=True))


def _dict(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TypeError(f"{where} returned {type(row).__name__} as a row; return a dict by column")
    return row


def _text(schema: pa.Schema | None) -> str:
    return "none yet" if schema is None else ", ".join(f"{field.name}: {field.type}" for field in schema)


def note_row(error: Exception, number: int) -> None:
    """Note the row in the error, for the error policy, unless the error has one."""
    if not hasattr(error, "row"):
        # An exception of user code may refuse attributes, as a frozen dataclass does.
        with contextlib.suppress(AttributeError):
            error.row = number  # type: ignore[attr-defined]


def note_key(error: Exception, key: Any) -> None:
    """Note the key, for the error policy, unless the error has one."""
    if not hasattr(error, KEY):
        shown = repr(key)
        with contextlib.suppress(AttributeError):
            setattr(error, KEY, shown if len(shown) <= _LONGEST_KEY else shown[:_LONGEST_KEY] + "...")

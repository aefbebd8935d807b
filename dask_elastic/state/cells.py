"""The state view of logic per row and per key: one key's values, lists and maps as Python objects."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.state.changes.fitting import fit_of_elements, fit_of_values
from dask_elastic.state.changes.undo_log import UndoLog
from dask_elastic.state.list_cell import ListCell
from dask_elastic.state.list_column import ListColumn, stored_elements
from dask_elastic.state.map_cell import MapCell
from dask_elastic.state.map_column import MapColumn
from dask_elastic.state.stored_values import to_python
from dask_elastic.state.timers import KeyTimers
from dask_elastic.state.value_column import ValueColumn
from dask_elastic.state.view import StateView
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.aggregates.user_aggregate import private_copy
from dask_elastic.topology.state_kind import Element
from dask_elastic.vocab.errors import StateValueError

_ABSENT = object()


class Cells:
    """The state of a batch's keys, one key at a time.

    Parameters
    ----------
    view : StateView
        The state of the batch.
    log : UndoLog, optional
        Takes the changes of the cells, so that they can be undone before `commit`.

    Notes
    -----
    A column is converted to Python at its first use and written back at `commit`. The engine commits after the logic
    has returned for the whole batch, so a batch that fails changes no state.
    """

    def __init__(self, view: StateView, log: UndoLog | None = None) -> None:
        self.view = view
        self.log = log
        self._opened: dict[str, _ValueCells | _ListCells | _MapCells] = {}

    def key(self, position: int) -> KeyState:
        """Return the state of the key at a position of `view.keys`."""
        return KeyState(self, position)

    def opened(self, name: str) -> _ValueCells | _ListCells | _MapCells:
        """Return the cells of a declared name, opened at first use."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = _cells_of(self.view, name, self.log)
        return found

    def commit(self) -> None:
        """Write the changed cells to the view."""
        for cells in self._opened.values():
            cells.commit()


class KeyState:
    """The state of one key, for logic per row and per key.

    Notes
    -----
    `state["name"]` returns the declared value, or None if the key has none. For a declared `List` or `Map` it returns
    a `ListCell` or `MapCell`, which is changed in place. `state["name"] = value` sets a value or replaces a list or
    map; `del state["name"]`, or setting None, deletes it. `"name" in state` tests for a value or a nonempty list or
    map. An undeclared name raises `StateError`, and a value that does not fit the declared type `StateValueError`, a
    failure of the row as any exception of user code.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask_elastic.testing import run
    >>> @de.per_row(output={"key": pa.string(), "change": pa.int64()})
    ... def change(row, state):
    ...     before = state.get("last", 0)
    ...     state["last"] = row["value"]
    ...     return {"key": row["key"], "change": row["value"] - before}
    >>> topology = de.Topology("changes")
    >>> table = pa.table({"key": ["a", "a"], "value": [5, 7]})
    >>> rows = topology.source("rows", de.sources.Arrow(table)).key_by("key")
    >>> stream = rows.compute(change, state={"last": pa.int64()}, name="change")
    >>> run(topology).state["change"].to_pylist()
    [{'key': 'a', 'last': 7}]
    """

    __slots__ = ("_cells", "_position")

    def __init__(self, cells: Cells, position: int) -> None:
        self._cells = cells
        self._position = position

    def __getitem__(self, name: str) -> Any:
        return self._cells.opened(name).get(self._position)

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells.opened(name).set(self._position, value)

    def __delitem__(self, name: str) -> None:
        self._cells.opened(name).set(self._position, None)

    def __contains__(self, name: str) -> bool:
        found = self[name]
        return len(found) > 0 if isinstance(found, ListCell | MapCell) else found is not None

    @property
    def now(self) -> float:
        """The batch's time, in seconds since 1970, by which state expires; a replay uses the same time.

        Returns
        -------
        float
            Seconds, equal for all rows of a batch.

        Examples
        --------
        >>> def stamp(row, state):
        ...     state["seen_at"] = state.now
        """
        return self._cells.view.now

    @property
    def timers(self) -> KeyTimers:
        """The timers of the key.

        Returns
        -------
        KeyTimers
            Sets, reads and deletes them.

        Examples
        --------
        >>> def expire_later(row, state):
        ...     state.timers.set("expire", state.now + 60)
        """
        return KeyTimers(self._cells.opened, self._cells.view.layout, self._position)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default if the key has none.

        Parameters
        ----------
        name : str
            The declared name.
        default : object, optional
            Returned if the key has no value; None by default.

        Returns
        -------
        object
            The value; a `ListCell` or `MapCell` of a declared list or map.

        Raises
        ------
        StateError
            If the name is not declared.

        Examples
        --------
        >>> def count(row, state):
        ...     state["count"] = state.get("count", 0) + 1
        """
        found = self[name]
        return default if found is None else found


class _ValueCells:
    def __init__(self, column: ValueColumn, count: int, log: UndoLog | None) -> None:
        self._column = column
        self._log = log
        self._count = count
        self._values: list[Any] | None = None
        self._is_object = column.kind.type is object
        self._is_mutable = self._is_object or pa.types.is_nested(column.kind.type)
        self._fit = fit_of_values(column.kind.type, column.name)
        self._in_event_time = column.kind.ttl_clock == "event"
        self._new: dict[int, Any] = {}
        self._until: dict[int, float] = {}

    def get(self, position: int) -> Any:
        value = self._present(position)
        return private_copy(value) if self._is_mutable else value

    def _present(self, position: int) -> Any:
        if self._in_event_time and self._until_of(position) <= self._column.times.seen:
            return None
        if position in self._new:
            return self._new[position]
        if self._values is None:
            values, known = self._column.read()
            self._values = to_python(values, self._column.kind.type, known)
        return self._values[position]

    def set(self, position: int, value: Any) -> None:
        value = private_copy(value) if self._is_object else self._fit(value)
        if self._log is not None:
            before = self._new.get(position, _ABSENT), self._until.get(position, 0.0)
            self._log.add(partial(self._restore, position, *before))
        if self._in_event_time:
            self._until[position] = self._expiry(position)
        self._new[position] = value

    def _expiry(self, position: int) -> float:
        """Return when a value expires that is set now: not earlier than the value that it replaces."""
        until = self._column.times.of_call(self._column.kind)
        return until if self._present(position) is None else max(until, self._until_of(position))

    def _until_of(self, position: int) -> float:
        return self._until[position] if position in self._new else self._column.expiry(position)

    def _restore(self, position: int, value: Any, until: float) -> None:
        if value is _ABSENT:
            self._new.pop(position, None)
        else:
            self._new[position] = value
            self._until[position] = until

    def commit(self) -> None:
        if not self._new:
            return
        where = None if len(self._new) == self._count else _mask(self._new, self._count)
        until = None
        if self._in_event_time:
            until = np.array([self._until.get(position, 0.0) for position in range(self._count)])
        # None deletes the value of an `object` kind too, as it does for every other type.
        values = [self._new.get(position) for position in range(self._count)]
        self._column.write(values, where, none_is_null=True, until=until)
        self._new = {}


class _ListCells:
    def __init__(self, column: ListColumn, count: int, log: UndoLog | None) -> None:
        self._column = column
        self._log = log
        self._count = count
        self._fit = fit_of_elements(column.kind.type, column.name)
        self._cells: dict[int, ListCell] = {}

    def get(self, position: int) -> ListCell:
        cell = self._cells.get(position)
        if cell is None:
            cell = self._cells[position] = ListCell(self._column, position, self._fit, self._log)
        return cell

    def set(self, position: int, value: Any) -> None:
        self.get(position).replace([] if value is None else value)

    def commit(self) -> None:
        kind, name = self._column.kind, self._column.name
        rewritten = {position: cell.kept for position, cell in self._cells.items() if cell.rewritten}
        if rewritten:
            kept = {position: elements for position, (elements, _) in rewritten.items()}
            parts = [_ragged(kept, self._count, kind.type, name)]
            if kind.ttl is not None:
                expiries = [expiry for position in sorted(rewritten) for expiry in rewritten[position][1]]
                parts.append(Ragged(np.array(expiries, np.float64), parts[0].offsets))
            self._column.replace(parts, _mask(rewritten, self._count))
        added = {position: cell.added for position, cell in self._cells.items() if cell.added}
        if added:
            more = _ragged(added, self._count, kind.type, name)
            until = None
            if kind.ttl is not None:
                until = np.array([one for position in sorted(added) for one in self._cells[position].until], np.float64)
            self._column.append_at(more.values, more.owners, until)
        self._cells = {}


class _MapCells:
    def __init__(self, column: MapColumn, count: int, log: UndoLog | None) -> None:
        self._column = column
        self._log = log
        self._count = count
        kind = column.kind
        self._fits = fit_of_elements(kind.key, column.name), fit_of_elements(kind.type, column.name)
        self._cells: dict[int, MapCell] = {}

    def get(self, position: int) -> MapCell:
        cell = self._cells.get(position)
        if cell is None:
            cell = self._cells[position] = MapCell(self._column, position, self._fits, self._log)
        return cell

    def set(self, position: int, value: Any) -> None:
        self.get(position).replace({} if value is None else dict(value))

    def commit(self) -> None:
        kind, name = self._column.kind, self._column.name
        changed = {position: cell for position, cell in self._cells.items() if cell.changed}
        if changed:
            values = {position: list(cell.entries.values()) for position, cell in changed.items()}
            keys = {position: list(cell.entries) for position, cell in changed.items()}
            parts = [_ragged(values, self._count, kind.type, name), _ragged(keys, self._count, kind.key, name)]
            if kind.ttl is not None:
                expiries = [changed[position].expiries[key] for position in sorted(changed) for key in keys[position]]
                parts.append(Ragged(np.array(expiries, np.float64), parts[0].offsets))
            self._column.replace(parts, _mask(changed, self._count))
        self._cells = {}


def _cells_of(view: StateView, name: str, log: UndoLog | None) -> _ValueCells | _ListCells | _MapCells:
    column = view.column(name)
    if isinstance(column, ValueColumn):
        return _ValueCells(column, len(view), log)
    if isinstance(column, ListColumn):
        return _ListCells(column, len(view), log)
    return _MapCells(column, len(view), log)


def _ragged(lists: dict[int, list[Any]], count: int, kind: Element, name: str) -> Ragged:
    """Return the given lists in stored form; positions without one get an empty list."""
    lengths = np.zeros(count, np.int64)
    elements: list[Any] = []
    for position in sorted(lists):
        lengths[position] = len(lists[position])
        elements += lists[position]
    stored, known = stored_elements(elements, kind, name)
    if not known.all():
        raise StateValueError(f"the state {name!r} was given None; lists and maps hold no nulls, so leave it out")
    return Ragged.of_lengths(stored, lengths)


def _mask(positions: Iterable[int], count: int) -> np.ndarray:
    mask = np.zeros(count, np.bool_)
    mask[list(positions)] = True
    return mask

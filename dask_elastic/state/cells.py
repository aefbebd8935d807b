"""The state view of logic per row and per key: one key's values, lists and maps as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, overload

import numpy as np

from dask_elastic.state.list_column import ListColumn, stored_elements
from dask_elastic.state.map_column import MapColumn
from dask_elastic.state.stored_values import to_python
from dask_elastic.state.value_column import ValueColumn
from dask_elastic.state.view import StateView
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.aggregates.user_aggregate import private_copy
from dask_elastic.topology.state_kind import Element
from dask_elastic.vocab.errors import StateError


class Cells:
    """The state of a batch's keys, one key at a time.

    Parameters
    ----------
    view : StateView
        The state of the batch.

    Notes
    -----
    A column is converted to Python at its first use and written back at `commit`. The engine commits after the logic
    has returned for the whole batch, so a batch that fails changes no state.
    """

    def __init__(self, view: StateView) -> None:
        self.view = view
        self._opened: dict[str, _ValueCells | _ListCells | _MapCells] = {}

    def key(self, position: int) -> KeyState:
        """Return the state of the key at a position of `view.keys`."""
        return KeyState(self, position)

    def opened(self, name: str) -> _ValueCells | _ListCells | _MapCells:
        """Return the cells of a declared name, opened at first use."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = _cells_of(self.view, name)
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
    map. An undeclared name raises `StateError`.

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
    def __init__(self, column: ValueColumn, count: int) -> None:
        self._column = column
        self._count = count
        self._values: list[Any] | None = None
        self._is_object = column.kind.type is object
        self._new: dict[int, Any] = {}

    def get(self, position: int) -> Any:
        if position in self._new:
            value = self._new[position]
            return private_copy(value) if self._is_object else value
        if self._values is None:
            values, known = self._column.read()
            self._values = to_python(values, self._column.kind.type, known)
        value = self._values[position]
        return private_copy(value) if self._is_object else value

    def set(self, position: int, value: Any) -> None:
        self._new[position] = private_copy(value) if self._is_object else value

    def commit(self) -> None:
        if not self._new:
            return
        where = None if len(self._new) == self._count else _mask(self._new, self._count)
        # None deletes the value of an `object` kind too, as it does for every other type.
        self._column.write([self._new.get(position) for position in range(self._count)], where, none_is_null=True)
        self._new = {}


class ListCell(Sequence[Any]):
    """One key's list: a read-only Python sequence with methods that change it.

    Examples
    --------
    >>> def remember(row, state):
    ...     recent = state["recent"]
    ...     recent.append(row["value"])
    ...     recent.keep_newest(10)
    ...     return {"mean": sum(recent) / len(recent)}
    """

    def __init__(self, column: ListColumn, position: int) -> None:
        self._column = column
        self._position = position
        self._old: list[Any] | None = None
        self._expiries: list[float] = []
        self.rewritten = False
        self.added: list[Any] = []

    def _read(self) -> list[Any]:
        if self._old is None:
            self._old, self._expiries = self._column.python(self._position)
        return self._old

    @property
    def kept(self) -> tuple[list[Any], list[float]]:
        """The stored elements that were not removed, and their expiry times."""
        return self._read(), self._expiries

    def __len__(self) -> int:
        return len(self._read()) + len(self.added)

    def __iter__(self) -> Iterator[Any]:
        return map(private_copy, [*self._read(), *self.added])

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        return private_copy([*self._read(), *self.added][place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def append(self, element: Any) -> None:
        """Append an element.

        Parameters
        ----------
        element : object
            A value of the declared type; None is refused when the batch is committed.

        Examples
        --------
        >>> def remember(row, state):
        ...     state["recent"].append(row["value"])
        """
        self.added.append(private_copy(element))

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements, in their order.

        Parameters
        ----------
        elements : iterable
            Values of the declared type.

        Examples
        --------
        >>> def remember(key, batch, state):
        ...     state["recent"].extend(batch["value"].to_pylist())
        """
        self.added.extend(map(private_copy, elements))

    def keep_newest(self, most: int) -> None:
        """Remove all but the last elements.

        Parameters
        ----------
        most : int
            How many elements to keep, at most.

        Examples
        --------
        >>> def remember(row, state):
        ...     state["recent"].append(row["value"])
        ...     state["recent"].keep_newest(10)
        """
        surplus = len(self) - most
        if surplus > 0:
            old = self._read()
            self._old, self._expiries = old[surplus:], self._expiries[surplus:]
            self.added = self.added[max(0, surplus - len(old)) :]
            self.rewritten = True

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements.

        Parameters
        ----------
        elements : iterable
            Values of the declared type.

        Examples
        --------
        >>> def sort(row, state):
        ...     state["best"].replace(sorted([*state["best"], row["value"]])[-3:])
        """
        after = [private_copy(element) for element in elements]
        self.clear()
        self.added = after

    def clear(self) -> None:
        """Remove all elements.

        Examples
        --------
        >>> def restart(row, state):
        ...     state["recent"].clear()
        """
        self._old, self._expiries, self.added, self.rewritten = [], [], [], True


class _ListCells:
    def __init__(self, column: ListColumn, count: int) -> None:
        self._column = column
        self._count = count
        self._cells: dict[int, ListCell] = {}

    def get(self, position: int) -> ListCell:
        cell = self._cells.get(position)
        if cell is None:
            cell = self._cells[position] = ListCell(self._column, position)
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
            self._column.append_at(more.values, more.owners)
        self._cells = {}


class MapCell(MutableMapping[Any, Any]):
    """One key's map, used as a dict.

    Examples
    --------
    >>> def count_words(row, state):
    ...     counts = state["counts"]
    ...     counts[row["word"]] = counts.get(row["word"], 0) + 1
    """

    def __init__(self, column: MapColumn, position: int, now: float) -> None:
        self.entries, self.expiries = column.python(position)
        self.changed = False
        self._expiry = None if column.kind.ttl is None else now + column.kind.ttl

    def __getitem__(self, key: Any) -> Any:
        return private_copy(self.entries[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = private_copy(value)
        if self._expiry is not None:
            self.expiries[key] = self._expiry
        self.changed = True

    def __delitem__(self, key: Any) -> None:
        del self.entries[key]
        self.expiries.pop(key, None)
        self.changed = True

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return repr(self.entries)


class _MapCells:
    def __init__(self, column: MapColumn, count: int, now: float) -> None:
        self._column = column
        self._count = count
        self._now = now
        self._cells: dict[int, MapCell] = {}

    def get(self, position: int) -> MapCell:
        cell = self._cells.get(position)
        if cell is None:
            cell = self._cells[position] = MapCell(self._column, position, self._now)
        return cell

    def set(self, position: int, value: Any) -> None:
        cell = self.get(position)
        after = {} if value is None else dict(value)
        cell.clear()
        cell.update(after)
        cell.changed = True

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


def _cells_of(view: StateView, name: str) -> _ValueCells | _ListCells | _MapCells:
    column = view.column(name)
    if isinstance(column, ValueColumn):
        return _ValueCells(column, len(view))
    if isinstance(column, ListColumn):
        return _ListCells(column, len(view))
    return _MapCells(column, len(view), view.now)


def _ragged(lists: dict[int, list[Any]], count: int, kind: Element, name: str) -> Ragged:
    """Return the given lists in stored form; positions without one get an empty list."""
    lengths = np.zeros(count, np.int64)
    elements: list[Any] = []
    for position in sorted(lists):
        lengths[position] = len(lists[position])
        elements += lists[position]
    stored, known = stored_elements(elements, kind, name)
    if not known.all():
        raise StateError(f"the state {name!r} was given None; lists and maps hold no nulls, so leave it out")
    return Ragged.of_lengths(stored, lengths)


def _mask(positions: Iterable[int], count: int) -> np.ndarray:
    mask = np.zeros(count, np.bool_)
    mask[list(positions)] = True
    return mask

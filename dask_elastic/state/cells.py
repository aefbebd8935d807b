"""Keyed state as logic per row and per key sees it: one key's values, lists and maps as Python has them."""

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
    """The state of a batch's keys, key by key.

    Parameters
    ----------
    view : StateView
        The state of the batch.

    Notes
    -----
    Whole columns are read at first use and written back, converted, at `commit`; between the two each key's cell is
    plain Python. What logic does to a cell becomes state when the logic of all the batch has returned.
    """

    def __init__(self, view: StateView) -> None:
        self.view = view
        self._opened: dict[str, _ValueCells | _ListCells | _MapCells] = {}

    def key(self, position: int) -> KeyState:
        """Return the state of one of `view.keys`."""
        return KeyState(self, position)

    def opened(self, name: str) -> _ValueCells | _ListCells | _MapCells:
        """Return the cells of a declared name."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = _cells_of(self.view, name)
        return found

    def commit(self) -> None:
        """Hand what has changed to the view."""
        for cells in self._opened.values():
            cells.commit()


class KeyState:
    """The state of one key, for logic per row and per key.

    `state["name"]` is a value, or None where the key has none; of a declared list or map it is the list or map, which
    is changed in place. `state["name"] = value` sets a value, and None or `del` takes it away.
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
        """The time by which state expires, seconds since the epoch: one for a whole batch, and the same in a replay."""
        return self._cells.view.now

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where the key has none."""
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
        where = np.zeros(self._count, np.bool_)
        where[list(self._new)] = True
        # None takes a Python value away, too, as it does any other one.
        self._column.write([self._new.get(position) for position in range(self._count)], where, none_is_null=True)
        self._new = {}


class ListCell(Sequence[Any]):
    """One key's list: `append`, `extend`, `keep_newest`, `replace`, `clear`, and all that one can read of a list."""

    def __init__(self, column: ListColumn, position: int) -> None:
        self._column = column
        self._position = position
        self._old: list[Any] | None = None
        self._ends: list[float] = []
        self.rewritten = False
        self.added: list[Any] = []

    def _read(self) -> list[Any]:
        if self._old is None:
            self._old, self._ends = self._column.python(self._position)
        return self._old

    @property
    def kept(self) -> tuple[list[Any], list[float]]:
        """What is left of what there was, and when each element ends."""
        return self._read(), self._ends

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
        """Put an element behind all others."""
        self.added.append(private_copy(element))

    def extend(self, elements: Iterable[Any]) -> None:
        """Put elements behind all others."""
        self.added.extend(map(private_copy, elements))

    def keep_newest(self, most: int) -> None:
        """Shorten the list to its last elements, at most so many."""
        surplus = len(self) - most
        if surplus > 0:
            old = self._read()
            self._old, self._ends = old[surplus:], self._ends[surplus:]
            self.added = self.added[max(0, surplus - len(old)) :]
            self.rewritten = True

    def replace(self, elements: Iterable[Any]) -> None:
        """Put other elements in place of all."""
        after = [private_copy(element) for element in elements]
        self.clear()
        self.added = after

    def clear(self) -> None:
        """Empty the list."""
        self._old, self._ends, self.added, self.rewritten = [], [], [], True


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
                ends = [end for position in sorted(rewritten) for end in rewritten[position][1]]
                parts.append(Ragged(np.array(ends, np.float64), parts[0].offsets))
            self._column.replace(parts, _mask(rewritten, self._count))
        added = {position: cell.added for position, cell in self._cells.items() if cell.added}
        if added:
            more = _ragged(added, self._count, kind.type, name)
            self._column.append_at(more.values, more.owners)
        self._cells = {}


class MapCell(MutableMapping[Any, Any]):
    """One key's map, used as a dict."""

    def __init__(self, column: MapColumn, position: int, now: float) -> None:
        self.entries, self.ends = column.python(position)
        self.changed = False
        self._end = None if column.kind.ttl is None else now + column.kind.ttl

    def __getitem__(self, key: Any) -> Any:
        return private_copy(self.entries[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = private_copy(value)
        if self._end is not None:
            self.ends[key] = self._end
        self.changed = True

    def __delitem__(self, key: Any) -> None:
        del self.entries[key]
        self.ends.pop(key, None)
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
                ends = [changed[position].ends[key] for position in sorted(changed) for key in keys[position]]
                parts.append(Ragged(np.array(ends, np.float64), parts[0].offsets))
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
    """Return the lists of some of the keys as stored, the others empty."""
    lengths = np.zeros(count, np.int64)
    elements: list[Any] = []
    for position in sorted(lists):
        lengths[position] = len(lists[position])
        elements += lists[position]
    stored, known = stored_elements(elements, kind, name)
    if not known.all():
        raise StateError(f"the state {name!r} was given None; lists and maps keep no nulls, so leave it out")
    return Ragged.of_lengths(stored, lengths)


def _mask(positions: Iterable[int], count: int) -> np.ndarray:
    mask = np.zeros(count, np.bool_)
    mask[list(positions)] = True
    return mask

"""Keyed state as users' batch logic sees it: named values, lists and maps of the keys in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.layout import StateLayout
from dask_elastic.state.list_column import ListColumn
from dask_elastic.state.map_column import MapColumn
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, filled, private
from dask_elastic.state.value_column import ValueColumn
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.state_kind import Declared, List, Map, Value
from dask_elastic.vocab.errors import StateError

_UNSET = object()
AnyColumn = ValueColumn | ListColumn | MapColumn
_COLUMNS: dict[type, type[Any]] = {Value: ValueColumn, List: ListColumn, Map: MapColumn}
_METHODS = {Value: "get and set", List: "list", Map: "map"}


class StateView:
    """The state of the keys in one batch, one array element per distinct key.

    Parameters
    ----------
    session : Session
        The task's session.
    located : Located
        The batch's keys.
    rows : RecordBatch
        The batch.
    key_columns : sequence of str
        Its key columns.
    declared : mapping or StateLayout
        What the operator declares by name: a `Value`, `List` or `Map`; an Arrow type or `object` is a value's.
    now : float, optional
        The batch's time in seconds since the epoch, by which state expires; given by the executor's home.

    Notes
    -----
    What is set becomes state at `commit`, which the engine calls when the logic has returned.

    Examples
    --------
    A difference to the value before, per key:

    >>> def change(batch, state):
    ...     last = batch["price"].to_numpy()[state.first]
    ...     before = state.get("last", default=np.nan)
    ...     state.set("last", last)
    ...     return state.keys.append_column("change", pa.array(last - before))
    """

    def __init__(
        self,
        session: Session,
        located: Located,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        declared: Mapping[str, Declared] | StateLayout,
        now: float = 0.0,
    ) -> None:
        self.now = now
        self._session = session
        self._located = located
        self._rows = rows
        self._key_columns = list(key_columns)
        self._layout = declared if isinstance(declared, StateLayout) else StateLayout(declared)
        self._columns: dict[str, AnyColumn] = {}

    @property
    def keys(self) -> pa.RecordBatch:
        """The distinct keys of the batch; every array of state is in their order."""
        return self._rows.select(self._key_columns).take(pa.array(self.first))

    @property
    def first(self) -> npt.NDArray[np.intp]:
        """A row of each key."""
        return self._located.first

    @property
    def ordinals(self) -> npt.NDArray[np.intp]:
        """For each row the number of its key within `keys`; `values[state.ordinals]` spreads values over the rows."""
        return self._located.grouping.ordinals

    @property
    def grouping(self) -> Grouping:
        """The rows by key."""
        return self._located.grouping

    def __len__(self) -> int:
        return len(self._located)

    def get(self, name: str, default: object = _UNSET) -> Values:
        """Return a value of every key.

        Parameters
        ----------
        name : str
            The value's declared name.
        default : object, optional
            What keys have that have no value yet; without it zero, False, NaT or None.

        Returns
        -------
        ndarray
            One element per key, the caller's own; timestamps, dates and durations as NumPy's, other types than numbers
            and booleans as Python objects.
        """
        column = self._value(name)
        stored, known = column.read()
        values = private(stored)
        if default is not _UNSET:
            try:
                values = filled(values, ~known, default)
            except (TypeError, ValueError, OverflowError) as error:
                raise StateError(
                    f"the default {default!r} does not fit the state value {name!r}, {column.kind.type}: {error}"
                ) from error
        return values

    def known(self, name: str) -> Known:
        """Return which keys have a value."""
        return self._value(name).read()[1].copy()

    def set(self, name: str, values: Any, where: Known | None = None) -> None:
        """Give every key, or those chosen, a value.

        Parameters
        ----------
        name : str
            The value's declared name.
        values : array-like
            One element per key. A null takes the key's value away.
        where : ndarray of bool, optional
            Which keys to change; all by default.

        Raises
        ------
        StateError
            If the name is not declared, or length or type do not fit.
        """
        self._value(name).write(values, where)

    def list(self, name: str) -> ListColumn:
        """Return a declared list of every key.

        Parameters
        ----------
        name : str
            The list's declared name.

        Returns
        -------
        ListColumn
            What it is read and changed by.
        """
        column = self.column(name, List)
        assert isinstance(column, ListColumn)
        return column

    def map(self, name: str) -> MapColumn:
        """Return a declared map of every key.

        Parameters
        ----------
        name : str
            The map's declared name.

        Returns
        -------
        MapColumn
            What it is read and changed by.
        """
        column = self.column(name, Map)
        assert isinstance(column, MapColumn)
        return column

    def _value(self, name: str) -> ValueColumn:
        column = self.column(name, Value)
        assert isinstance(column, ValueColumn)
        return column

    def column(self, name: str, wanted: type | None = None) -> AnyColumn:
        """Return what is declared under a name; with `wanted`, only if it is of that kind."""
        kind = self._layout.kinds.get(name)
        if kind is None:
            names = ", ".join(map(repr, self._layout.kinds)) or "none"
            raise StateError(f"the state value {name!r} is not declared in state={{...}}; declared are: {names}")
        if wanted is not None and type(kind) is not wanted:
            raise StateError(
                f"the state {name!r} is declared as {kind!r}, which is used by state.{_METHODS[type(kind)]}"
            )
        if name not in self._columns:
            self._columns[name] = self._opened(name)
        return self._columns[name]

    def _opened(self, name: str) -> AnyColumn:
        kind, span = self._layout.kinds[name], list(self._layout.spans[name])

        def load() -> Sequence[Column]:
            return self._session.gather(self._located, span)

        if isinstance(kind, Value):
            return ValueColumn(name, kind, len(self), self.now, load)
        made: AnyColumn = _COLUMNS[type(kind)](name, kind, self.ordinals, len(self), self.now, load)
        return made

    def commit(self) -> None:
        """Write what has changed to the store."""
        arrays: list[Column | None] = [None] * len(self._layout.fields)
        changed = False
        for name, column in self._columns.items():
            changes = column.changes()
            if changes is not None:
                span = self._layout.spans[name]
                arrays[span.start : span.stop] = changes
                changed = True
        if changed:
            self._session.scatter(self._located, arrays)

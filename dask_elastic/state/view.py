"""The state view of vectorised user logic: the declared values, lists and maps of one batch's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.expiry.times import BatchTimes
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.list_column import ListColumn
from dask_elastic.state.map_column import MapColumn
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, filled, private
from dask_elastic.state.timers import BatchTimers
from dask_elastic.state.value_column import ValueColumn
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.state_kind import Declared, List, Map, Value
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.row_bytes import is_light

_UNSET = object()
_OF_ONE_KEY = (
    "state[{0!r}] is the state of one key, but this function is called per batch: write @de.per_row or @de.per_key "
    "above it, or use the arrays of state.get({0!r}) and state.set({0!r}, values)"
)
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
        The names of the key columns.
    declared : mapping or StateLayout
        The operator's declaration by name: a `Value`, `List` or `Map`; an Arrow type or `object` declares a value.
    now : float, optional
        The batch's time in seconds since 1970, by which state expires; assigned by the executor's home.
    reached : int, optional
        The event time before the batch in microseconds, by which state expires in event time.
    moments : ndarray of int64, optional
        The event time of each row in microseconds.

    Attributes
    ----------
    now : float
        The batch's time, as above.
    times : BatchTimes
        All times of the batch.
    layout : StateLayout
        The declaration.

    Notes
    -----
    Changes become state at `commit`, which the engine calls after the logic has returned for the whole batch.

    Examples
    --------
    The sum of all values per key:

    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> def add(batch, state):
    ...     sums = np.bincount(state.ordinals, batch["value"].to_numpy(), len(state))
    ...     state.set("sum", state.get("sum") + sums)
    >>> topology = de.Topology("sums")
    >>> table = pa.table({"key": ["a", "b", "a"], "value": [1.0, 2.0, 3.0]})
    >>> rows = topology.source("rows", de.sources.Arrow(table)).key_by("key")
    >>> stream = rows.compute(add, state={"sum": pa.float64()}, name="add")
    >>> sorted(tuple(row.values()) for row in run(topology).state["add"].to_pylist())
    [('a', 4.0), ('b', 2.0)]
    """

    def __init__(
        self,
        session: Session,
        located: Located,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        declared: Mapping[str, Declared] | StateLayout,
        now: float = 0.0,
        reached: int | None = None,
        moments: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.now = now
        self.times = BatchTimes(now, located.grouping.ordinals, len(located), reached, moments)
        self._session = session
        self._located = located
        self._rows = rows
        self._key_columns = list(key_columns)
        self.layout = declared if isinstance(declared, StateLayout) else StateLayout(declared)
        self._columns: dict[str, AnyColumn] = {}

    @property
    def timers(self) -> BatchTimers:
        """The timers of the batch's keys.

        Returns
        -------
        BatchTimers
            Sets, reads and deletes them.

        Examples
        --------
        >>> def expire_later(batch, state):
        ...     state.timers.set("expire", np.full(len(state), state.now + 60))
        """
        return BatchTimers(self)

    @property
    def keys(self) -> pa.RecordBatch:
        """The distinct keys of the batch.

        Returns
        -------
        RecordBatch
            The key columns, one row per key; all arrays of state are in this order.

        Examples
        --------
        >>> def counts(batch, state):
        ...     return state.keys.append_column("rows", pa.array(np.bincount(state.ordinals)))
        """
        keys = self._rows.select(self._key_columns)
        if len(self) == keys.num_rows and all(map(is_light, keys.columns)):
            return keys
        return keys.take(array_of(self._located.first))

    @property
    def first(self) -> npt.NDArray[np.intp]:
        """The first row of each key in the batch.

        Returns
        -------
        ndarray of intp
            Row numbers, in the order of `keys`.

        Examples
        --------
        >>> def first_visits(batch, state):
        ...     new = ~state.known("seen")
        ...     state.set("seen", np.ones(len(state), bool))
        ...     return batch.take(np.sort(state.first[new]))
        """
        grouping = self.grouping
        return self._located.first if self._has_one_row_each() else grouping.order.take(grouping.starts)

    @property
    def last(self) -> npt.NDArray[np.intp]:
        """The last row of each key in the batch.

        Returns
        -------
        ndarray of intp
            Row numbers, in the order of `keys`.

        Examples
        --------
        >>> def remember(batch, state):
        ...     state.set("newest", batch["value"].to_numpy()[state.last])
        """
        grouping = self.grouping
        if self._has_one_row_each():
            return self._located.first
        return grouping.order.take(grouping.starts + (grouping.sizes - 1))

    def _has_one_row_each(self) -> bool:
        return bool(len(self) == self._rows.num_rows)

    @property
    def ordinals(self) -> npt.NDArray[np.intp]:
        """For each row of the batch, the position of its key in `keys`.

        Returns
        -------
        ndarray of intp
            One position per row; `values[state.ordinals]` turns values per key into values per row.

        Examples
        --------
        >>> def with_total(batch, state):
        ...     return batch.append_column("total", pa.array(state.get("total")[state.ordinals]))
        """
        return self._located.grouping.ordinals

    @property
    def grouping(self) -> Grouping:
        """The rows of the batch grouped by key.

        Returns
        -------
        Grouping
            Sizes, ordinals and order of the groups; group i is the key at position i of `keys`.

        Examples
        --------
        >>> def count(batch, state):
        ...     state.set("count", state.get("count") + state.grouping.sizes)
        """
        return self._located.grouping

    def __len__(self) -> int:
        return len(self._located)

    def __getitem__(self, name: str) -> NoReturn:
        raise TypeError(_OF_ONE_KEY.format(name))

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise TypeError(_OF_ONE_KEY.format(name))

    def get(self, name: str, default: object = _UNSET) -> Values:
        """Return a declared value of every key.

        Parameters
        ----------
        name : str
            The value's declared name.
        default : object, optional
            The value of keys that have none; if not given, zero, False, NaT or None by type.

        Returns
        -------
        ndarray
            One element per key; a copy, which the caller may change. Numbers, booleans, timestamps, dates and
            durations have NumPy types; all others are Python objects.

        Raises
        ------
        StateError
            If the name is not declared as a value, or the default does not fit its type.

        Examples
        --------
        >>> def change(batch, state):
        ...     last = batch["price"].to_numpy()[state.last]
        ...     before = state.get("last", default=np.nan)
        ...     state.set("last", last)
        ...     return state.keys.append_column("change", pa.array(last - before))
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
        """Return which keys have a value.

        Parameters
        ----------
        name : str
            The value's declared name.

        Returns
        -------
        ndarray of bool
            One element per key.

        Raises
        ------
        StateError
            If the name is not declared as a value.

        Examples
        --------
        >>> def first_seen(batch, state):
        ...     new = ~state.known("last")
        ...     state.set("last", batch["price"].to_numpy()[state.last])
        ...     return state.keys.filter(pa.array(new))
        """
        return self._value(name).read()[1].copy()

    def set(self, name: str, values: Any, where: Known | None = None) -> None:
        """Set a declared value of all or some keys.

        Parameters
        ----------
        name : str
            The value's declared name.
        values : array-like
            One element per key. A null deletes the key's value.
        where : ndarray of bool, optional
            The keys to change; all by default.

        Raises
        ------
        StateError
            If the name is not declared as a value, or the length does not fit.
        StateValueError
            If the type does not fit.

        Examples
        --------
        >>> def remember(batch, state):
        ...     last = batch["price"].to_numpy()[state.last]
        ...     state.set("last", last, where=last > 0)
        """
        self._value(name).write(values, where)

    def list(self, name: str) -> ListColumn:
        """Return access to a declared list of every key.

        Parameters
        ----------
        name : str
            The list's declared name.

        Returns
        -------
        ListColumn
            Reads and changes the lists.

        Raises
        ------
        StateError
            If the name is not declared as a list.

        Examples
        --------
        >>> def remember(batch, state):
        ...     state.list("values").append(batch["value"])
        """
        column = self.column(name, List)
        assert isinstance(column, ListColumn)
        return column

    def map(self, name: str) -> MapColumn:
        """Return access to a declared map of every key.

        Parameters
        ----------
        name : str
            The map's declared name.

        Returns
        -------
        MapColumn
            Reads and changes the maps.

        Raises
        ------
        StateError
            If the name is not declared as a map.

        Examples
        --------
        >>> def remember(batch, state):
        ...     state.map("last").put(batch["place"], batch["value"])
        """
        column = self.column(name, Map)
        assert isinstance(column, MapColumn)
        return column

    def earliest_timer(self, name: str) -> int | None:
        """Return the earliest time of a timer that logic has touched, in microseconds; None if no key has one."""
        column = self._columns.get(self.layout.timers[name])
        if not isinstance(column, ValueColumn):
            return None
        times, known = column.read()
        return int(times[known].view(np.int64).min()) if known.any() else None

    def _value(self, name: str) -> ValueColumn:
        column = self.column(name, Value)
        assert isinstance(column, ValueColumn)
        return column

    def column(self, name: str, wanted: type | None = None) -> AnyColumn:
        """Return the column of a declared name; with `wanted`, raise StateError unless it is of that kind.

        Parameters
        ----------
        name : str
            The declared name.
        wanted : type, optional
            `Value`, `List` or `Map`.

        Returns
        -------
        ValueColumn, ListColumn or MapColumn
            The column, read at its first use.

        Raises
        ------
        StateError
            If the name is not declared, or declared as another kind.
        """
        kind = self.layout.kinds.get(name)
        if kind is None:
            names = ", ".join(map(repr, self.layout.declared)) or "none"
            raise StateError(f"the state {name!r} is not declared in state={{...}}; the declared names are: {names}")
        if wanted is not None and type(kind) is not wanted:
            raise StateError(f"the state {name!r} is declared as {kind!r}; access it with state.{_METHODS[type(kind)]}")
        if name not in self._columns:
            self._columns[name] = self._opened(name)
        return self._columns[name]

    def _opened(self, name: str) -> AnyColumn:
        kind, span = self.layout.kinds[name], list(self.layout.spans[name])
        # Without a reference to this view: a cycle would keep the batch's values in memory until the next collection.
        load = partial(self._session.gather, self._located, span)
        if isinstance(kind, Value):
            return ValueColumn(name, kind, len(self), self.times, load)
        made: AnyColumn = _COLUMNS[type(kind)](name, kind, self.ordinals, len(self), self.times, load)
        return made

    def discard(self) -> None:
        """Drop all changes, as if the logic had not been called."""
        self._columns = {}

    def commit(self, where: Known | None = None) -> None:
        """Write the changes to the store; called by the engine, not by user logic.

        Parameters
        ----------
        where : ndarray of bool, optional
            The keys whose state is written; all by default.
        """
        arrays: list[Column | None] = [None] * len(self.layout.fields)
        changed = False
        for name, column in self._columns.items():
            changes = column.changes()
            if changes is not None:
                span = self.layout.spans[name]
                arrays[span.start : span.stop] = changes
                changed = True
        if changed:
            self._session.scatter(self._located, arrays, where)

"""Mapping of declared state names to stored fields, and the rules of expiry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.state.expiry.times import ExpiryTimes
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, dtype_of, to_arrow
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.state_kind import Declared, List, Map, StateKind, Value, kind_of
from dask_elastic.topology.timer import value_name
from dask_elastic.vocab.arrow_arrays import array_of

KNOWN, KEYS, EXPIRIES, EVENT_EXPIRIES = "?", "#", "@", "@@"
"""Suffixes of the names of additional fields: whether a key has a value; a map's keys; expiry times by clock."""

TIME = Value(pa.timestamp("us"))
"""How the time of a timer is stored: as a value that users do not see."""


class StateLayout:
    """The stored fields of an operator's declared state.

    Parameters
    ----------
    declared : mapping of str to StateKind, DataType or object
        The operator's `state=` declaration.
    timers : iterable of str
        The names of its timers.

    Attributes
    ----------
    declared : list of str
        The names that users read.
    timers : dict of str to str
        The name of the value that holds the time of each timer, by the timer's name.
    kinds : dict of str to StateKind
        The kind of each name, those of timers included.
    fields : tuple of Field
        For a value: the value and whether it is set. For a list: its elements. For a map: its values and its keys.
        With a time to live, one more: the expiry times, in seconds since 1970, or in microseconds of event time.
    spans : dict of str to range
        The positions of each name's fields in `fields`.
    expires, expires_in_event_time : bool
        Whether any name has a time to live in processing time, or in event time.

    Examples
    --------
    >>> layout = StateLayout({"last": pa.float64(), "recent": List(pa.int64(), ttl="1 min")})
    >>> [field.name for field in layout.fields], layout.spans["recent"]
    (['last', 'last?', 'recent', 'recent@'], range(2, 4))
    """

    def __init__(self, declared: Mapping[str, Declared], timers: Iterable[str] = ()) -> None:
        self.timers = {name: value_name(name) for name in timers}
        self.declared = [*declared]
        self.kinds: dict[str, StateKind] = {name: kind_of(kind) for name, kind in declared.items()}
        self.kinds |= dict.fromkeys(self.timers.values(), TIME)
        self.spans: dict[str, range] = {}
        fields: list[Field] = []
        for name, kind in self.kinds.items():
            start = len(fields)
            fields += _fields_of(name, kind)
            self.spans[name] = range(start, len(fields))
        self.fields = tuple(fields)
        clocks = {kind.ttl_clock for kind in self.kinds.values() if kind.ttl is not None}
        self.expires, self.expires_in_event_time = "processing" in clocks, "event" in clocks

    def unexpired(self, values: Sequence[Column], times: ExpiryTimes) -> list[Column]:
        """Return the columns without the state that has expired; unchanged columns are the same objects.

        Parameters
        ----------
        values : sequence of (ndarray or Ragged)
            One column per field.
        times : ExpiryTimes
            The time by each clock.

        Returns
        -------
        list of (ndarray or Ragged)
            One column per field.
        """
        left = list(values)
        for name, kind in self.kinds.items():
            if kind.ttl is not None:
                span = self.spans[name]
                left[span.start : span.stop] = unexpired_part(kind, values[span.start : span.stop], times.of(kind))
        return left

    def has_any(self, values: Sequence[Column], count: int) -> Known:
        """Return which keys have any state, as an array of bool.

        Parameters
        ----------
        values : sequence of (ndarray or Ragged)
            One column per field.
        count : int
            The number of keys.

        Returns
        -------
        ndarray of bool
            One element per key.
        """
        found = np.zeros(count, np.bool_)
        for name, kind in self.kinds.items():
            start = self.spans[name].start
            found |= values[start + 1] if isinstance(kind, Value) else values[start].lengths > 0
        return found

    def results(self, values: Sequence[Column]) -> dict[str, pa.Array]:
        """Return the users' form of the state: an Arrow array per name; Python objects are pickled.

        Parameters
        ----------
        values : sequence of (ndarray or Ragged)
            One column per field.

        Returns
        -------
        dict of str to Array
            One element per key in each array; null where a key has no value.
        """
        return {name: _result(self.kinds[name], values[self.spans[name].start :]) for name in self.declared}


def layout_of(operator: Compute) -> StateLayout:
    """Return the layout of the state and the timers of an operator whose logic is a function."""
    return StateLayout(operator.state or {}, operator.timers or ())


def _fields_of(name: str, kind: StateKind) -> list[Field]:
    ragged = not isinstance(kind, Value)
    fields = [_field(name, dtype_of(kind.type), ragged)]
    if isinstance(kind, Value):
        fields.append(Field(name + KNOWN, np.dtype(np.bool_), False))
    if isinstance(kind, Map):
        fields.append(_field(name + KEYS, dtype_of(kind.key), ragged))
    if kind.ttl is not None:
        suffix = EVENT_EXPIRIES if kind.ttl_clock == "event" else EXPIRIES
        fields.append(Field(name + suffix, np.dtype(np.float64), 0.0, ragged))
    return fields


def _field(name: str, dtype: np.dtype[Any], ragged: bool) -> Field:
    initial = None if dtype.hasobject else "NaT" if dtype.kind in "Mm" else 0
    return Field(name, dtype, initial, ragged)


def unexpired_part(kind: StateKind, values: Sequence[Column], now: float) -> Sequence[Column]:
    """Return one name's fields without the state whose expiry time is `now` or earlier."""
    if kind.ttl is None:
        return values
    if not isinstance(kind, Value):
        kept = values[-1].values > now
        return values if kept.all() else [column.filtered(kept) for column in values]
    stored, known, expiries = values
    expired = known & (expiries <= now)
    if not expired.any():
        return values
    blank = _field("", stored.dtype, False).fresh(1)
    return [np.where(expired, blank, stored), known & ~expired, expiries]


def _result(kind: StateKind, values: Sequence[Column]) -> pa.Array:
    if isinstance(kind, Value):
        return to_arrow(values[0], kind.type, values[1])
    elements = to_arrow(values[0].values, kind.type)
    offsets = array_of(values[0].offsets.astype(np.int32))
    if isinstance(kind, List):
        return pa.ListArray.from_arrays(offsets, elements)
    assert isinstance(kind, Map)
    return pa.MapArray.from_arrays(offsets, to_arrow(values[1].values, kind.key), elements)

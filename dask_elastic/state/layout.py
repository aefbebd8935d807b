"""What is declared of a function's state, as fields: where each name's lie, what has expired, what users see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, dtype_of, to_arrow
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.state_kind import Declared, List, Map, StateKind, Value, kind_of

KNOWN, KEYS, ENDS = "?", "#", "@"
"""What the names of further fields end in: whether a key has a value, a map's keys, and when each thing ends."""


class StateLayout:
    """The fields of some declared names.

    Parameters
    ----------
    declared : mapping of str to StateKind, DataType or object
        What an operator declares.

    Attributes
    ----------
    kinds : dict of str to StateKind
        What each name is.
    fields : tuple of Field
        Of a value: it and whether there is one. Of a list: its elements. Of a map: its values and its keys. Where there
        is a time to live, when each of these ends, in seconds since the epoch.
    spans : dict of str to range
        The positions of each name's fields.
    expires : bool
        Whether anything has a time to live.

    Examples
    --------
    >>> layout = StateLayout({"last": pa.float64(), "recent": List(pa.int64(), ttl="1 min")})
    >>> [field.name for field in layout.fields], layout.spans["recent"]
    (['last', 'last?', 'recent', 'recent@'], range(2, 4))
    """

    def __init__(self, declared: Mapping[str, Declared]) -> None:
        self.kinds: dict[str, StateKind] = {name: kind_of(kind) for name, kind in declared.items()}
        self.spans: dict[str, range] = {}
        fields: list[Field] = []
        for name, kind in self.kinds.items():
            start = len(fields)
            fields += _fields_of(name, kind)
            self.spans[name] = range(start, len(fields))
        self.fields = tuple(fields)
        self.expires = any(kind.ttl is not None for kind in self.kinds.values())

    def unexpired(self, values: Sequence[Column], now: float) -> list[Column]:
        """Return the state that is left at a time; columns from which nothing is taken are the very ones given."""
        left = list(values)
        if self.expires:
            for name, kind in self.kinds.items():
                if kind.ttl is not None:
                    span = self.spans[name]
                    left[span.start : span.stop] = unexpired_part(kind, values[span.start : span.stop], now)
        return left

    def has_any(self, values: Sequence[Column], count: int) -> Known:
        """Return which keys have anything at all."""
        found = np.zeros(count, np.bool_)
        for name, kind in self.kinds.items():
            start = self.spans[name].start
            found |= values[start + 1] if isinstance(kind, Value) else values[start].lengths > 0
        return found

    def results(self, values: Sequence[Column]) -> dict[str, pa.Array]:
        """Return what users see: by name a column of values, lists or maps; Python objects are pickled."""
        return {name: _result(kind, values[self.spans[name].start :]) for name, kind in self.kinds.items()}


def _fields_of(name: str, kind: StateKind) -> list[Field]:
    ragged = not isinstance(kind, Value)
    fields = [_field(name, dtype_of(kind.type), ragged)]
    if isinstance(kind, Value):
        fields.append(Field(name + KNOWN, np.dtype(np.bool_), False))
    if isinstance(kind, Map):
        fields.append(_field(name + KEYS, dtype_of(kind.key), ragged))
    if kind.ttl is not None:
        fields.append(Field(name + ENDS, np.dtype(np.float64), 0.0, ragged))
    return fields


def _field(name: str, dtype: np.dtype[Any], ragged: bool) -> Field:
    initial = None if dtype.hasobject else "NaT" if dtype.kind in "Mm" else 0
    return Field(name, dtype, initial, ragged)


def unexpired_part(kind: StateKind, values: Sequence[Column], now: float) -> Sequence[Column]:
    """Return what is left of one name's fields at a time; something ends at its end, not after it."""
    if kind.ttl is None:
        return values
    if not isinstance(kind, Value):
        kept = values[-1].values > now
        return values if kept.all() else [column.filtered(kept) for column in values]
    stored, known, ends = values
    ended = known & (ends <= now)
    if not ended.any():
        return values
    blank = _field("", stored.dtype, False).fresh(1)
    return [np.where(ended, blank, stored), known & ~ended, ends]


def _result(kind: StateKind, values: Sequence[Column]) -> pa.Array:
    if isinstance(kind, Value):
        return to_arrow(values[0], kind.type, values[1])
    elements = to_arrow(values[0].values, kind.type)
    offsets = pa.array(values[0].offsets.astype(np.int32))
    if isinstance(kind, List):
        return pa.ListArray.from_arrays(offsets, elements)
    assert isinstance(kind, Map)
    return pa.MapArray.from_arrays(offsets, to_arrow(values[1].values, kind.key), elements)


def value_fields(declared: Mapping[str, Declared]) -> tuple[Field, ...]:
    """Return the fields that hold what is declared.

    Examples
    --------
    >>> value_fields({"last": pa.float64()})
    (Field('last', float64, initial=0.0), Field('last?', bool, initial=False))
    """
    return StateLayout(declared).fields


def value_result(declared: Mapping[str, Declared], fields: Sequence[Column]) -> list[pa.Array]:
    """Return what is declared as Arrow arrays, null where a key has no value; what is declared `object` is pickled.

    Examples
    --------
    >>> value_result({"name": pa.string()}, [np.array(["a", None]), np.array([True, False])])[0].to_pylist()
    ['a', None]
    """
    return list(StateLayout(declared).results(fields).values())

"""Arrow types that can be part of a key, by how they are hashed."""

from __future__ import annotations

from enum import Enum, auto

import pyarrow as pa

from dask_elastic.vocab.errors import TopologyError


class Kind(Enum):
    """Arrow types that are hashed in the same way."""

    INTEGER = auto()
    BOOL = auto()
    FLOAT = auto()
    DAYS = auto()
    TIME = auto()
    DECIMAL = auto()
    BYTES = auto()
    FIXED = auto()
    NULL = auto()
    VIEW = auto()
    DICTIONARY = auto()
    RUNS = auto()


TYPES: dict[Kind, list[pa.DataType]] = {
    Kind.INTEGER: [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        pa.date64(),
    ],
    Kind.BOOL: [pa.bool_()],
    Kind.FLOAT: [pa.float16(), pa.float32(), pa.float64()],
    Kind.DAYS: [pa.date32()],
    Kind.TIME: [pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("s")],
    # PyArrow has decimal32 and decimal64 since version 19.
    Kind.DECIMAL: [
        getattr(pa, name)(1) for name in ("decimal32", "decimal64", "decimal128", "decimal256") if hasattr(pa, name)
    ],
    Kind.BYTES: [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()],
    Kind.FIXED: [pa.binary(1)],
    Kind.NULL: [pa.null()],
    Kind.VIEW: [pa.string_view(), pa.binary_view()],
    Kind.DICTIONARY: [pa.dictionary(pa.int8(), pa.int8())],
    Kind.RUNS: [pa.run_end_encoded(pa.int16(), pa.int8())],
}
KINDS = {example.id: kind for kind, examples in TYPES.items() for example in examples}


def not_a_key(name: str, type_: pa.DataType) -> TopologyError:
    """Return the error of a key column whose type cannot be part of a key.

    Examples
    --------
    >>> print(not_a_key("stops", pa.list_(pa.string())))
    the key column 'stops' has type list<item: string>, which cannot be part of a key. Use map to derive columns of ...
    """
    return TopologyError(
        f"the key column {name!r} has type {type_}, which cannot be part of a key. Use map to derive columns of"
        " integers, floats, decimals, strings, binaries, bools, dates or times from it, and key by these."
    )


def can_be_key(type_: pa.DataType) -> bool:
    """Return whether columns of a type can be part of a key.

    Examples
    --------
    >>> can_be_key(pa.string()), can_be_key(pa.dictionary(pa.int8(), pa.string())), can_be_key(pa.list_(pa.string()))
    (True, True, False)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return can_be_key(type_.storage_type)
    kind = KINDS.get(type_.id)
    if kind in (Kind.DICTIONARY, Kind.RUNS):
        return can_be_key(type_.value_type)
    return kind is not None

"""Converts typed values to plain ones that MessagePack carries, and back, by the type hints of their fields.

A record (a dataclass or a named tuple) becomes a tuple of its fields in their order; field names are not sent. The
conversion of a type is planned once and cached. Fields that are plain already are copied in C, so that a report of many
executors costs the scheduler's event loop little.

========================================  ==============================================
type                                      plain value
========================================  ==============================================
bool, int, float, str, bytes, None, Any   itself
dataclass, NamedTuple                     tuple of the plain fields
Enum                                      its value
tuple, list, frozenset                    tuple
dict                                      dict; the keys are plain already
X | None                                  None or the plain X
Payload                                   what Dask sends as a frame of its own, uncopied
========================================  ==============================================
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from distributed.protocol import Serialize, Serialized, to_serialize

T = TypeVar("T")

Payload = memoryview
"""Large bytes. Between encoding and decoding, and in a scheduler, which passes them on unread, Dask wraps them."""

Convert = Callable[[Any], Any]

PLAIN = (bool, int, float, str, bytes, type(None), Any, object)


class Codec(NamedTuple):
    """How values of one type are converted; None where they are plain already.

    Parameters
    ----------
    encode, decode : callable or None
        From the value to a plain one, and back.
    """

    encode: Convert | None
    decode: Convert | None


IDENTITY = Codec(None, None)


def once_per_type(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache what a function returns for each type."""
    return functools.cache(function)


def encode(kind: type[T], value: T) -> Any:
    """Return a value of a type as a plain value.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> encode(dict[str, list[ExecutorId]], {"lost": [ExecutorId("counts", 2)]})
    {'lost': (('counts', 2),)}
    """
    convert = codec(kind).encode
    return value if convert is None else convert(value)


def decode(kind: type[T], plain: Any) -> T:
    """Return the inverse of `encode`.

    Raises
    ------
    ValueError, TypeError
        If the plain value has another shape than the type.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> decode(list[ExecutorId], [["counts", 2]])
    [ExecutorId(component='counts', index=2)]
    """
    convert = codec(kind).decode
    value: T = plain if convert is None else convert(plain)
    return value


@once_per_type
def codec(kind: Any) -> Codec:
    """Return the conversion of a type.

    Raises
    ------
    TypeError
        If there is none: the type is not in the table above.
    """
    if kind in PLAIN:
        return IDENTITY
    if kind is Payload:
        return Codec(_wrap, _unwrap)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(kind))
    if origin is not None:
        return _collection(kind, origin, typing.get_args(kind))
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return Codec(attrgetter("value"), kind)
        if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
            return _record(kind)
    raise TypeError(f"values of type {kind} cannot be sent: the codec does not know it")


class Fields(NamedTuple):
    """The fields of a record type.

    Parameters
    ----------
    names : tuple of str
        Their names, in order.
    codecs : tuple of Codec
        The conversion of each.
    """

    names: tuple[str, ...]
    codecs: tuple[Codec, ...]


@once_per_type
def fields(kind: type[Any]) -> Fields:
    """Return the fields of a dataclass or named tuple with their conversions."""
    hints = typing.get_type_hints(kind)
    names = tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else kind._fields
    return Fields(names, tuple(codec(hints[name]) for name in names))


def _wrap(data: Any) -> Any:
    return data if isinstance(data, Serialize | Serialized) else to_serialize(memoryview(data))


def _unwrap(data: Any) -> Any:
    # Within one process Dask leaves what it would serialize as it is; in a scheduler serialized frames stay serialized.
    return data.data if isinstance(data, Serialize) else data


def _union(kinds: tuple[Any, ...]) -> Codec:
    """Return the conversion of an optional value, or of a union of plain ones."""
    inner = {codec(kind) for kind in kinds if kind is not type(None)}
    if len(inner) > 1 or (len(kinds) > 2 and inner != {IDENTITY}):
        raise TypeError(f"a union of {kinds} cannot be sent: its plain values do not tell which of them it is")
    return Codec(*map(_unless_none, inner.pop()))


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _collection(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> Codec:
    if origin is tuple and arguments[-1:] != (...,):
        codecs = [codec(argument) for argument in arguments]
        row_encode, row_decode = _row([c.encode for c in codecs]), _row([c.decode for c in codecs])
        return Codec(row_encode or tuple, row_decode or tuple)
    if origin in (tuple, list, frozenset):
        item = codec(arguments[0])
        return Codec(_each(tuple, item.encode), _each(origin, item.decode))
    if origin is dict:
        if codec(arguments[0]) != IDENTITY:
            raise TypeError(f"values of type {kind} cannot be sent: the keys of a dict have to be plain")
        value = codec(arguments[1])
        return Codec(_each_value(value.encode), None if value.decode is None else _each_value(value.decode))
    raise TypeError(f"values of type {kind} cannot be sent: the codec does not know it")


def _each(build: Any, convert: Convert | None) -> Convert:
    if convert is None:
        return typing.cast(Convert, build)
    return lambda values: build(map(convert, values))


def _each_value(convert: Convert | None) -> Convert:
    # Without serialization, between processes that are one, a dict must not be shared.
    if convert is None:
        return dict
    return lambda values: {key: convert(value) for key, value in values.items()}


def _row(converts: Sequence[Convert | None]) -> Convert | None:
    """Return what converts a sequence with one conversion for each place; None if all of its values are plain."""
    special = [(place, convert) for place, convert in enumerate(converts) if convert is not None]
    if not special:
        return None

    def convert_row(values: Any) -> tuple[Any, ...]:
        row = list(values)
        for place, convert in special:
            row[place] = convert(row[place])
        return tuple(row)

    return convert_row


def _record(kind: type[Any]) -> Codec:
    names, codecs = fields(kind)
    encode_row = _row([c.encode for c in codecs])
    decode_row = _row([c.decode for c in codecs])
    read = _reader(kind, names)
    build = _builder(kind, names)
    count = len(names)

    def decode_record(plain: Any) -> Any:
        if len(plain) != count:
            raise ValueError(f"{kind.__name__} has {count} fields, and {len(plain)} came: {plain!r:.200}")
        return build(plain if decode_row is None else decode_row(plain))

    if encode_row is None:
        return Codec(read, decode_record)
    return Codec(lambda value: encode_row(read(value)), decode_record)


def _reader(kind: type[Any], names: tuple[str, ...]) -> Convert:
    """Return what gives the field values of a record as a tuple."""
    if issubclass(kind, tuple):
        return tuple
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _builder(kind: type[Any], names: tuple[str, ...]) -> Convert:
    """Return what makes a record of its field values, in order."""
    if issubclass(kind, tuple):
        return kind._make  # type: ignore[attr-defined, no-any-return]
    if hasattr(kind, "__post_init__") or not hasattr(kind, "__dict__") or "__slots__" in kind.__dict__:
        return lambda row: kind(*row)

    def build(row: Any) -> Any:
        # The __init__ of a frozen dataclass would set its fields one by one, at three times the cost.
        record = object.__new__(kind)
        record.__dict__.update(zip(names, row, strict=True))
        return record

    return build

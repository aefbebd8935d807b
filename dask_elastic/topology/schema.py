"""Comparing schemas: does a batch fit its stream, and if not, how does it differ in words."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.vocab.errors import SchemaMismatch

_LARGE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, with every column nullable.

    Parameters
    ----------
    schema : Schema
        Any schema.

    Returns
    -------
    Schema
        The same names and types, which is all that streams distinguish.

    Examples
    --------
    >>> plain_schema(pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"made": "by hand"}))
    n: int64
    """
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type whose nested fields are nullable and carry no metadata, and whose values are stored one by one.

    Dictionaries and runs are decoded. Views of texts and binaries, of which Arrow cannot choose rows, become large
    texts and binaries.

    Parameters
    ----------
    kind : DataType
        Any type; one without children is returned as it is.

    Returns
    -------
    DataType
        The same type where only names and types of children count.

    Examples
    --------
    >>> plain_type(pa.list_(pa.field("item", pa.int64(), nullable=False)))
    ListType(list<item: int64>)
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if kind in _LARGE:
        return _LARGE[kind]
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def plain_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in a plain type.

    Parameters
    ----------
    column : Array
        Any column whose plain type it is, or one of nulls.
    kind : DataType
        A type that `plain_type` returns.

    Returns
    -------
    Array
        The same values; the column itself where it has the type.

    Examples
    --------
    >>> plain_column(pa.array(["N1", "N1"], pa.string_view()), pa.large_string()).type
    DataType(large_string)
    """
    if column.type == kind:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return plain_column(pc.run_end_decode(column), kind)
    if pa.types.is_dictionary(column.type) and column.type.value_type != kind:
        # Values that are views have to be others before rows can be chosen of them.
        values = plain_column(column.dictionary, kind)
        return pa.DictionaryArray.from_arrays(column.indices, values, safe=False).dictionary_decode()
    return column.cast(kind)


def describe_difference(expected: pa.Schema, actual: pa.Schema) -> str:
    """Say in words how a schema differs from the one that was expected.

    Parameters
    ----------
    expected, actual : Schema
        The schemas; their metadata and nullability do not count.

    Returns
    -------
    str
        The differences, most telling first; empty when there is none. A column of nothing but nulls (of type null)
        fits every type.

    Examples
    --------
    >>> expected = pa.schema({"delay": pa.int64(), "x": pa.string()})
    >>> describe_difference(expected, pa.schema({"delay": pa.int32(), "y": pa.string()}))
    "column 'delay': int32 instead of int64; missing: 'x'; unexpected: 'y'"
    >>> describe_difference(expected, pa.schema({"x": pa.string(), "delay": pa.int64()}))
    "order differs: 'x', 'delay' instead of 'delay', 'x'"
    """
    parts = [f"column {name!r} {count} times" for name, count in Counter(actual.names).items() if count > 1]
    for field in expected:
        for index in actual.get_all_field_indices(field.name):
            found = actual.field(index).type
            if not _fits(found, field.type):
                parts.append(f"column {field.name!r}: {found} instead of {field.type}")
    for word, names in (
        ("missing", [name for name in expected.names if name not in actual.names]),
        ("unexpected", [name for name in actual.names if name not in expected.names]),
    ):
        if names:
            parts.append(f"{word}: {_listed(names)}")
    if not parts and expected.names != actual.names:
        parts.append(f"order differs: {_listed(actual.names)} instead of {_listed(expected.names)}")
    return "; ".join(parts)


def check_schema(expected: pa.Schema, rows: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Bring a batch into its stream's schema, or say why it does not fit.

    Parameters
    ----------
    expected : Schema
        The stream's schema.
    rows : RecordBatch
        The batch. Its columns may come in another order; metadata and nullability do not count.
    where : str
        Who sent the batch, for the message.

    Returns
    -------
    RecordBatch
        The rows with the names, types and order of `plain_schema(expected)`; the batch itself where it has them.

    Raises
    ------
    SchemaMismatch
        When a column is missing, unexpected, there twice or of another type.

    Examples
    --------
    >>> expected = pa.schema({"a": pa.int64(), "b": pa.string()})
    >>> check_schema(expected, pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]}), "source 's'").schema.names
    ['a', 'b']
    """
    wanted = plain_schema(expected)
    if rows.schema.equals(wanted, check_metadata=True):
        return rows
    names = rows.schema.names
    fits = len(names) == len(wanted) and set(names) == set(wanted.names)
    if not fits or not all(_fits(rows.schema.field(field.name).type, field.type) for field in wanted):
        difference = describe_difference(expected, rows.schema)
        raise SchemaMismatch(f"{where}: {difference}. Send rows with the columns {_typed(wanted)}.")
    columns = [plain_column(rows.column(field.name), field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain_type(field.type))


def _fits(actual: pa.DataType, expected: pa.DataType) -> bool:
    return actual == expected or pa.types.is_null(actual) or bool(plain_type(actual) == plain_type(expected))


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _typed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)

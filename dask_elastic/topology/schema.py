"""Checks of rows against the schema of their stream, or against each other, and descriptions of the differences."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

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
        The same names and types, the only properties that streams distinguish.

    Examples
    --------
    >>> plain_schema(pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"made": "by hand"}))
    n: int64
    """
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain form of a type: without encoding, and with nullable nested fields without metadata.

    Dictionary-encoded and run-end-encoded types become their value type. String and binary views, which Arrow cannot
    filter, become large strings and large binaries.

    Parameters
    ----------
    kind : DataType
        Any type; a plain one is returned as it is.

    Returns
    -------
    DataType
        The plain type.

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


def kept_type(kind: pa.DataType, where: str) -> pa.DataType:
    """Return the type in which state of a declared type is kept, which holds the same values.

    Arrow selects no elements of views and of runs: views are kept as large strings or binaries, and run-end-encoded
    values as these. Views in list views, whose elements stay where they are, are kept as they are.

    Parameters
    ----------
    kind : DataType
        The declared type.
    where : str
        The declaration, for the error text.

    Returns
    -------
    DataType
        The declared type in most cases.

    Raises
    ------
    TopologyError
        If elements are of a union, or runs in a list of a type that cannot be converted.

    Examples
    --------
    >>> kept_type(pa.string_view(), "Value: type")
    DataType(large_string)
    >>> kept_type(pa.list_(pa.int64()), "Value: type")
    ListType(list<item: int64>)
    """
    found = kind if _is_selected_from(kind) else plain_type(kind)
    if not _is_selected_from(found) or any(map(pa.types.is_union, _parts(found))):
        raise TopologyError(
            f"{where} is {kind}, of which state cannot be kept; declare object, or a state for each of its types."
        )
    return found


def plain_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to a plain type.

    Parameters
    ----------
    column : Array
        A column of which `kind` is the plain type, or a column of type null.
    kind : DataType
        A plain type, as returned by `plain_type`.

    Returns
    -------
    Array
        The same values; the column itself if it already has the type.

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
        # Arrow cannot decode a dictionary of views, so the values are converted first.
        values = plain_column(column.dictionary, kind)
        return pa.DictionaryArray.from_arrays(column.indices, values, safe=False).dictionary_decode()
    return column.cast(kind)


def stack_rows(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Return the rows of several tables as one.

    Parameters
    ----------
    tables : sequence of Table
        The rows; without any, the result has no columns.
    where : str
        What the rows are, for the error text.

    Returns
    -------
    Table
        The rows in order, with the columns of the first table. A column without a type gets that of another table.

    Raises
    ------
    SchemaMismatch
        When the tables have other columns or types.

    Examples
    --------
    >>> stack_rows([pa.table({"n": [None]}), pa.table({"n": [2]})], "rows")["n"].to_pylist()
    [None, 2]
    >>> stack_rows([pa.table({"n": [1]}), pa.table({"k": ["a"]})], "the rows of sink 'out'")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SchemaMismatch: the rows of sink 'out' differ in their columns: n: int64; k: string. ...
    """
    if not tables:
        return pa.table({})
    names = tables[0].column_names
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables)
    if all(sorted(table.column_names) == sorted(names) for table in tables):
        with contextlib.suppress(pa.ArrowTypeError, pa.ArrowInvalid):  # columns of unlike types
            return pa.concat_tables([table.select(names) for table in tables], promote_options="default")
    schemas = dict.fromkeys(", ".join(f"{field.name}: {field.type}" for field in table.schema) for table in tables)
    raise SchemaMismatch(
        f"{where} differ in their columns: {'; '.join(schemas)}. Make them alike in a map before the sink."
    )


def describe_difference(expected: pa.Schema, actual: pa.Schema) -> str:
    """Describe how a schema differs from the expected one.

    Parameters
    ----------
    expected, actual : Schema
        The schemas; metadata and nullability are ignored.

    Returns
    -------
    str
        The differences, the most informative first; empty if there are none. A column of type null matches every type.

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
    """Convert a batch to the schema of its stream.

    Parameters
    ----------
    expected : Schema
        The stream's schema.
    rows : RecordBatch
        The batch. Its columns may be in another order; metadata and nullability are ignored.
    where : str
        The sender of the batch, for the error text.

    Returns
    -------
    RecordBatch
        The rows with the names, types and order of `plain_schema(expected)`; the batch itself if it has them already.

    Raises
    ------
    SchemaMismatch
        When a column is missing, unexpected, duplicated or of another type.

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
        raise SchemaMismatch(f"{where}: {difference}. Its rows need the columns {_typed(wanted)}.")
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


def _is_selected_from(kind: pa.DataType) -> bool:
    """Return whether Arrow selects elements of a type; it leaves those of list views where they are."""
    views = any(part in _LARGE for part in _parts(kind, in_list_views=False))
    return not views and not any(map(pa.types.is_run_end_encoded, _parts(kind)))


def _parts(kind: pa.DataType, *, in_list_views: bool = True) -> Iterator[pa.DataType]:
    """Yield a type and all types nested in it."""
    yield kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield from _parts(kind.value_type, in_list_views=in_list_views)
    elif in_list_views or not (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)):
        for index in range(kind.num_fields):
            yield from _parts(kind.field(index).type, in_list_views=in_list_views)

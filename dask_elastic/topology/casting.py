"""Casts of rows to the schema that a source declares, where that changes no value."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.schema import describe_difference, plain_column, plain_type
from dask_elastic.vocab.errors import SchemaMismatch

Kind = Callable[[pa.DataType], bool]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


FAMILIES: tuple[Kind, ...] = (
    _is_number,
    _is_text,
    _is_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)
"""Types among which values are cast. Others are refused: whether "12" is a number is for the sender to decide."""


def cast_rows(schema: pa.Schema, rows: pa.RecordBatch, where: str, declarer: str = "the source") -> pa.RecordBatch:
    """Convert rows to the schema that a source, or a function, declares.

    Parameters
    ----------
    schema : Schema
        A plain schema, as returned by `plain_schema`.
    rows : RecordBatch
        The rows. Columns may be in another order, encoded, or of a type from which every value can be cast: of other
        integers for an integer, of large strings for strings.
    where : str
        What the rows are, for the error text.
    declarer : str
        What has the schema, for the error text.

    Returns
    -------
    RecordBatch
        The rows with this schema; the batch itself if it has it already.

    Raises
    ------
    SchemaMismatch
        When a column is missing, unexpected, duplicated, of another kind, or has a value that the type cannot hold.

    Notes
    -----
    Floating-point values are rounded to the precision of the type.

    Examples
    --------
    >>> schema = pa.schema({"delay": pa.int64(), "plane": pa.string()})
    >>> rows = pa.record_batch({"plane": pa.array(["N1"], pa.large_string()), "delay": pa.array([5], pa.int32())})
    >>> cast_rows(schema, rows, "rows").schema.equals(schema)
    True
    """
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    if difference := _difference(schema, rows.schema):
        wanted = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise SchemaMismatch(f"{where}: {difference}. Convert them to the columns {wanted} of {declarer}.")
    columns = [_cast(rows.column(field.name), field, where, declarer) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _difference(schema: pa.Schema, found: pa.Schema) -> str:
    """Describe what casts and another order do not remedy; empty if there is nothing."""
    types = {field.name: field.type for field in schema}
    fields = [
        pa.field(field.name, types[field.name])
        if field.name in types and _castable(field.type, types[field.name])
        else field
        for field in found
    ]
    if sorted(field.name for field in fields) == sorted(types):
        fields.sort(key=lambda field: schema.get_field_index(field.name))
    return describe_difference(schema, pa.schema(fields))


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    found = plain_type(found)
    if found == wanted or pa.types.is_null(found):
        return True
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        # Which instant a time without a zone is, only the sender knows.
        return (found.tz is None) == (wanted.tz is None)
    if _is_list(found) and _is_list(wanted):
        return _castable(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        types = {found.field(index).name: found.field(index).type for index in range(found.num_fields)}
        fields = [wanted.field(index) for index in range(wanted.num_fields)]
        same = len(types) == found.num_fields and types.keys() == {field.name for field in fields}
        return same and all(_castable(types[field.name], field.type) for field in fields)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return _castable(found.key_type, wanted.key_type) and _castable(found.item_type, wanted.item_type)
    return any(family(found) and family(wanted) for family in FAMILIES)


def _cast(column: pa.Array, field: pa.Field, where: str, declarer: str) -> pa.Array:
    try:
        plain = plain_column(column, plain_type(column.type))
        cast = plain.cast(field.type)
        if pa.types.is_floating(plain.type) and pa.types.is_floating(field.type) and _infinities(cast, plain):
            raise pa.ArrowInvalid("a value is too large")
    except (pa.ArrowException, NotImplementedError) as error:
        raise SchemaMismatch(
            f"{where}: column {field.name!r} is {column.type} and must be {field.type}, but a value does not fit: "
            f"{error}. Correct the value, or declare a wider type in the schema of {declarer}."
        ) from error
    return cast


def _infinities(cast: pa.Array, before: pa.Array) -> bool:
    """Return whether a cast has made a finite value infinite."""
    if cast.type.bit_width >= before.type.bit_width:
        return False
    counts = [pc.sum(pc.is_inf(column)).as_py() or 0 for column in (cast, before)]
    return bool(counts[0] > counts[1])

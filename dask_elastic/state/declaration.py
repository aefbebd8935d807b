"""Comparison of the declared key columns and fields of keyed state."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.topology.aggregates.field import Field


def difference(
    keys: pa.Schema, other_keys: pa.Schema, fields: tuple[Field, ...], other_fields: tuple[Field, ...]
) -> str:
    """Return how two declarations of a store differ, for an error message.

    Parameters
    ----------
    keys, other_keys : Schema
        The key columns of the first and the second declaration.
    fields, other_fields : tuple of Field
        Their fields.

    Returns
    -------
    str
        The differences; empty if there are none.

    Examples
    --------
    >>> difference(pa.schema({"key": pa.int64()}), pa.schema({"key": pa.string()}), (), ())
    'key columns (key: int64) before, (key: string) now'
    """
    if fields == other_fields and keys.equals(other_keys):
        return ""
    parts = []
    if not keys.equals(other_keys):
        parts.append(f"key columns {_text(keys)} before, {_text(other_keys)} now")
    missing = [repr(field) for field in fields if field not in other_fields]
    added = [repr(field) for field in other_fields if field not in fields]
    if missing:
        parts.append(f"missing fields: {', '.join(missing)}")
    if added:
        parts.append(f"new fields: {', '.join(added)}")
    if not parts and fields != other_fields:
        parts.append("the same fields in another order")
    return "; ".join(parts)


def _text(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name}: {field.type}" for field in schema) + ")"

"""Finds columns of Spark's type variant, whose binary form Spark may change between versions."""

from __future__ import annotations

from typing import Any


def variant_columns(schema: Any) -> list[str]:
    """Return the columns that are, or contain, variants.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        The schema of a frame.

    Returns
    -------
    list of str
        Names of columns.
    """
    return [field.name for field in schema.fields if _has_variant(field.dataType)]


def _has_variant(kind: Any) -> bool:
    if kind.typeName() == "variant":
        return True
    inner = [field.dataType for field in getattr(kind, "fields", ())]
    inner += [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    return any(map(_has_variant, inner))

"""A text by which a user recognises some rows: how many there are, and some of their keys."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.vocab.python_values import python_columns

SHOWN_KEYS = 5
"""Keys that are named."""

LOOKED_AT = 256
"""Rows whose keys are looked at."""

LONGEST_KEY = 100
"""Characters of a key that are shown."""


def row_sample(rows: pa.RecordBatch, keys: Sequence[str]) -> str:
    """Return the number of rows and some of their keys, as text.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    keys : sequence of str
        The key columns; none are shown unless the rows have them all, as partial results do not.

    Examples
    --------
    >>> rows = pa.record_batch({"plane": ["a", "b", "a"], "delay": [1, 2, 3]})
    >>> row_sample(rows, ["plane"])
    "3 rows with the keys 'a', 'b'"
    >>> row_sample(rows.slice(0, 1), ["plane", "delay"])
    "1 row with the key ('a', 1)"
    """
    count = f"{rows.num_rows} row{'' if rows.num_rows == 1 else 's'}"
    if not keys or not set(keys) <= set(rows.schema.names):
        return count
    try:
        columns = python_columns(rows.slice(0, LOOKED_AT).select(keys))
    except ValueError:  # Python has no object for one of the keys: the number of rows must do
        return count
    found = dict.fromkeys(map(repr, columns[0] if len(columns) == 1 else zip(*columns, strict=True)))
    shown = [
        key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}..." for key in itertools.islice(found, SHOWN_KEYS)
    ]
    others = " and others" if len(found) > len(shown) else ""
    where = f" in the first {LOOKED_AT}" if rows.num_rows > LOOKED_AT else ""
    return f"{count} with the key{'' if len(found) == 1 else 's'} {', '.join(shown)}{others}{where}"

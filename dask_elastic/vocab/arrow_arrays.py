"""Arrow arrays that are made without ``pyarrow.array``, whose first call imports pandas.

That takes a process longer than all the other steps before its first row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array.

    Parameters
    ----------
    values : ndarray of int or float
        The numbers, in one dimension; the result may share their memory.

    Returns
    -------
    Array
        The same numbers.

    Examples
    --------
    >>> array_of(np.array([3, 1], np.int32)).to_pylist()
    [3, 1]
    """
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch.

    Parameters
    ----------
    schema : Schema
        Its schema.

    Returns
    -------
    RecordBatch
        No rows.

    Examples
    --------
    >>> no_rows(pa.schema({"plane": pa.string()})).to_pydict()
    {'plane': []}
    """
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)

"""Partial results of functions over windows: rows of declared columns, and the fields of state that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.operand import Restoring, storage, stored, validity
from dask_elastic.topology.schema import plain_schema

Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class PartialColumns:
    """The columns of partial results, as Arrow has them and as state keeps them.

    Parameters
    ----------
    schema : Schema
        The columns.

    Attributes
    ----------
    schema : Schema
        The same, plain.
    fields : tuple of Field
        The value of each column, and whether it is not null; at last whether there is a partial result at all.

    Notes
    -----
    Numbers, booleans, times and short decimals are kept as numbers; values of other types are Python objects.

    Examples
    --------
    >>> columns = PartialColumns(pa.schema({"most": pa.int64(), "plane": pa.string()}))
    >>> values = columns.stored(pa.record_batch({"most": [5, None], "plane": ["a", "b"]}, columns.schema))
    >>> [len(columns.fields), len(values)]
    [4, 4]
    >>> columns.rows(values).to_pylist()
    [{'most': 5, 'plane': 'a'}, {'most': None, 'plane': 'b'}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema: pa.Schema = plain_schema(schema)
        self._kinds = [storage(kind) for kind in self.schema.types]
        self._restoring = [
            None if dtype is None else Restoring(kind)
            for dtype, kind in zip(self._kinds, self.schema.types, strict=True)
        ]
        fields: list[Field] = []
        for name, dtype in zip(self.schema.names, self._kinds, strict=True):
            if dtype is None:
                fields.append(Field(f"{name}.value", np.dtype(object), None))
            else:
                fields.append(Field(f"{name}.value", dtype, 0))
                fields.append(Field(f"{name}.known", np.dtype(np.bool_), False))
        self.fields = (*fields, Field("present", np.dtype(np.bool_), False))

    def stored(self, rows: pa.RecordBatch) -> list[Column]:
        """Return partial results as state keeps them.

        Parameters
        ----------
        rows : RecordBatch
            Rows of `schema`.

        Returns
        -------
        list of ndarray
            One column per field, with an element for each row.
        """
        values: list[Column] = []
        for column, dtype in zip(rows.columns, self._kinds, strict=True):
            if dtype is None:
                objects = np.empty(len(column), object)
                objects[:] = column.to_pylist()
                values.append(objects)
            else:
                valid = validity(column)
                values += [stored(column), np.ones(len(column), np.bool_) if valid is None else valid]
        return [*values, np.ones(rows.num_rows, np.bool_)]

    def rows(self, values: list[Column]) -> pa.RecordBatch:
        """Return what state keeps as rows; null where there is no partial result.

        Parameters
        ----------
        values : list of ndarray
            One column per field.

        Returns
        -------
        RecordBatch
            Rows of `schema`.
        """
        columns: list[pa.Array] = []
        place = 0
        for restoring, kind in zip(self._restoring, self.schema.types, strict=True):
            if restoring is None:
                columns.append(pa.array(values[place].tolist(), kind))
                place += 1
            else:
                columns.append(restoring.array(values[place], values[place + 1]))
                place += 2
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

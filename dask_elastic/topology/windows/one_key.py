"""The constant key of windows over a whole stream: their state is that of one key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dask_elastic.vocab.arrow_arrays import array_of

ONE_KEY = "__one_key"
"""The column of the constant key. Results do not have it."""


@dataclass(frozen=True)
class OneKey:
    """A function of a map that adds the constant key.

    Examples
    --------
    >>> OneKey()(pa.record_batch({"delay": [5, 8]})).to_pydict()
    {'delay': [5, 8], '__one_key': [0, 0]}
    """

    __name__ = "one_key"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch with the constant key."""
        return batch.append_column(ONE_KEY, array_of(np.zeros(batch.num_rows, np.int8)))

    def known_output(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows from that of the input."""
        return schema.append(pa.field(ONE_KEY, pa.int8()))

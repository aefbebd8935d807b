"""The state of a stateful operator, read from the homes of its executors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_elastic.runtime.protocol.tables import read_table


class JobState:
    """Reads an operator's state; every read is fresh.

    Parameters
    ----------
    call : callable
        Asks the scheduler about the job.
    operator : str
        Name of the operator.

    Notes
    -----
    A read is consistent per executor, between two batches; executors are not read at the same moment.
    """

    def __init__(self, call: Callable[..., Any], operator: str):
        self._call = call
        self.operator = operator

    def __repr__(self) -> str:
        return f"JobState({self.operator!r})"

    def to_arrow(self) -> pa.Table:
        """All of it: the key columns, then the results, one row a key."""
        parts = [read_table(part) for part in self._call("state", operator=self.operator)]
        return pa.concat_tables(parts).combine_chunks() if parts else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """All of it as a pandas frame."""
        return self.to_arrow().to_pandas()

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the results of one key, None when the key has not been seen.

        Parameters
        ----------
        key : object
            The key; a tuple where there are several key columns.
        """
        values = list(key) if isinstance(key, tuple) else [key]
        parts = [read_table(part) for part in self._call("state", operator=self.operator, key=values)]
        return parts[0].to_pylist()[0] if parts else None

"""The state of a stateful operator, read from the homes of its executors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.job_calls import State
from dask_elastic.runtime.protocol.tables import read_table


class JobState:
    """Reads an operator's state from the homes at each call.

    Parameters
    ----------
    ask : Ask
        Calls the scheduler.
    job, operator : str
        The stateful operator of a job.

    Notes
    -----
    A read is consistent for each executor, between two batches; executors are not read at the same moment.
    """

    def __init__(self, ask: Ask, job: str, operator: str):
        self._ask = ask
        self._job = job
        self.operator = operator

    def __repr__(self) -> str:
        return f"JobState({self.operator!r})"

    def to_arrow(self) -> pa.Table:
        """Return the whole state: the key columns, then the results, one row for each key."""
        parts = [read_table(part) for part in self._ask(State(self._job, self.operator))]
        return pa.concat_tables(parts).combine_chunks() if parts else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """Return the whole state as a pandas frame."""
        return self.to_arrow().to_pandas()

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the results of one key, None when the key has not been seen.

        Parameters
        ----------
        key : object
            The key; a tuple where there are several key columns.
        """
        values = key if isinstance(key, tuple) else (key,)
        parts = [read_table(part) for part in self._ask(State(self._job, self.operator, values))]
        return parts[0].to_pylist()[0] if parts else None

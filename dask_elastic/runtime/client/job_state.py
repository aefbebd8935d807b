"""The state of a stateful operator, read at the homes of its executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.job_calls import State
from dask_elastic.runtime.protocol.tables import read_table

if TYPE_CHECKING:
    import pandas as pd


class JobState:
    """The state of an operator, as `Job.state` returns it; each call reads anew.

    Parameters
    ----------
    ask : Ask
        Calls the scheduler.
    job, operator : str
        Names of the job and of the operator.

    Notes
    -----
    A read is consistent within an executor: it happens between two batches. Executors are read one after the other.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b", "a"]})))
    >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     job = de.submit(topology, client)
    ...     job.wait(progress=False)
    ...     state = job.state("per_letter")
    ...     state.to_arrow().sort_by("letter").to_pydict()
    ...     state.to_pandas()["seen"].sum()
    ...     state.get("a")
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    np.int64(3)
    {'letter': 'a', 'seen': 2}
    """

    def __init__(self, ask: Ask, job: str, operator: str):
        self._ask = ask
        self._job = job
        self.operator = operator

    def __repr__(self) -> str:
        return f"JobState({self.operator!r})"

    def to_arrow(self) -> pa.Table:
        """Return the state of all keys.

        Returns
        -------
        pyarrow.Table
            One row per key: the key columns, then the results. If no row has arrived yet, columns whose type depends on
            what a function returns have the type null.
        """
        parts = [read_table(part) for part in self._ask(State(self._job, self.operator))]
        return pa.concat_tables(parts).combine_chunks() if parts else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """Return the state of all keys.

        Returns
        -------
        pandas.DataFrame
            The same rows and columns as `to_arrow` returns.
        """
        return self.to_arrow().to_pandas()

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the state of one key.

        Parameters
        ----------
        key : object
            The key; a tuple if there are several key columns.

        Returns
        -------
        dict of str to object, or None
            The key columns and the results by column; None if the key was not seen.
        """
        values = key if isinstance(key, tuple) else (key,)
        parts = [read_table(part) for part in self._ask(State(self._job, self.operator, values))]
        return parts[0].to_pylist()[0] if parts else None

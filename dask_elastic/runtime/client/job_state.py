"""The state of a stateful operator, read at the homes of its executors."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.client.state_frame import state_frame
from dask_elastic.runtime.protocol.job_calls import State
from dask_elastic.runtime.protocol.tables import first_rows, read_table, total_rows
from dask_elastic.vocab.errors import ElasticError, StateError

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd
    from distributed import Client

SHOWN = 10
"""Rows in the interpreter and in notebooks."""

WIDEST = 40
"""Characters of a value that are shown there."""


class JobState:
    """The state of an operator, as `Job.state` returns it; each call reads anew.

    Parameters
    ----------
    client : distributed.Client
        A client of the job's cluster.
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
    ...     print(repr(state).splitlines()[0])
    ...     frame = state.to_dask()
    ...     int(frame["seen"].sum().compute())
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    np.int64(3)
    {'letter': 'a', 'seen': 2}
    State of 'per_letter' in job 'letters': 2 keys
    3
    """

    def __init__(self, client: Client, job: str, operator: str):
        self._client = client
        self._job = job
        self.operator = operator

    def __repr__(self) -> str:
        title, rows = self._preview()
        if rows is None or rows.empty:
            return title
        return f"{title}\n{rows.to_string(index=False, max_colwidth=WIDEST)}"

    def _repr_html_(self) -> str:
        import pandas as pd

        title, rows = self._preview()
        if rows is None:
            return f"<p>{escape(title)}</p>"
        with pd.option_context("display.max_colwidth", WIDEST):
            table = rows.to_html(index=False, border=0) if len(rows) else ""
        return f"<div><strong>{escape(title)}</strong>{table}</div>"

    def _preview(self) -> tuple[str, pd.DataFrame | None]:
        """Return a title and the first rows, the executors send no others; None for rows that cannot be read."""
        name = f"State of {self.operator!r} in job {self._job!r}"
        if self._client.asynchronous:  # its event loop cannot wait for the scheduler
            return name, None
        try:
            rows = self.head(SHOWN)
        except ElasticError as error:  # an interpreter shows it as often as it likes
            return f"{name}: {error}", None
        total = total_rows(rows)
        shown = f", the first {SHOWN}" if total > SHOWN else ""
        return f"{name}: {total:,} key{'' if total == 1 else 's'}{shown}", rows.to_pandas()

    def head(self, rows: int = SHOWN) -> pa.Table:
        """Return some of the keys; the executors send no others.

        Parameters
        ----------
        rows : int
            The largest number of rows.

        Returns
        -------
        pyarrow.Table
            Rows of `to_arrow`, in no particular order.

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
        ...     job.state("per_letter").head(1).num_rows
        1
        """
        call = State(self._job, self.operator, first=rows)
        parts = [read_table(part) for part in call_scheduler(self._client, call)]
        total = sum(map(total_rows, parts))
        found = pa.concat_tables([part.replace_schema_metadata() for part in parts]) if parts else pa.table({})
        return first_rows(found, rows, total)

    def to_arrow(self) -> pa.Table:
        """Return the state of all keys.

        Returns
        -------
        pyarrow.Table
            One row per key: the key columns, then the results. If no row has arrived yet, columns whose type depends on
            what a function returns have the type null.
        """
        parts = [read_table(part) for part in call_scheduler(self._client, State(self._job, self.operator))]
        return pa.concat_tables(parts).combine_chunks() if parts else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """Return the state of all keys.

        Returns
        -------
        pandas.DataFrame
            The same rows and columns as `to_arrow` returns.
        """
        return self.to_arrow().to_pandas()

    def to_dask(self) -> dd.DataFrame:
        """Return the state of all keys as a Dask DataFrame, which reads it when it is computed.

        Returns
        -------
        dask.dataframe.DataFrame
            One partition per executor, with the rows and columns of `to_arrow`. The dtypes are those of Arrow, such as
            ``int64[pyarrow]``; a key or a missing value has the same type in every partition.

        Raises
        ------
        UnknownOperator
            If the job has no such stateful operator.

        Notes
        -----
        A task on the cluster reads the state of an executor from the worker where it is; neither the client nor the
        scheduler handles the rows. Compute the frame on the cluster of the job, before the job is forgotten.

        Once the job has ended, all partitions are of the same moment. While it runs, each partition is a snapshot of
        its executor, between two batches, at the time at which it is computed: partitions are of different moments, and
        a further computation reads anew, unless the frame was persisted.

        The types of the columns are read now. If no row has arrived yet, a column whose type depends on what a function
        returns has the type null: call `to_dask` again after the first rows.
        """
        return state_frame(self._client, self._job, self.operator)

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

        Raises
        ------
        StateError
            If the key has several rows: of a compute with windows one for each part of event time, of a join one for
            each row that waits. Or if the values are not of the types of the key columns.
        """
        rows = rows_of_key(self, key if isinstance(key, tuple) else (key,))
        if rows.num_rows > 1:
            raise StateError(
                f"operator {self.operator!r} of job {self._job!r} has {rows.num_rows} rows for the key {key!r}, of "
                "several windows, or of a join that waits: read them with to_arrow() or to_pandas(), and filter"
            )
        return rows.to_pylist()[0] if rows.num_rows else None


def rows_of_key(state: JobState, key: Sequence[Any]) -> pa.Table:
    """Return all rows of one key.

    Parameters
    ----------
    state : JobState
        The state of an operator.
    key : sequence
        A value for each key column.

    Returns
    -------
    pyarrow.Table
        Rows of `JobState.to_arrow`; without columns if the key was not seen.

    Raises
    ------
    StateError
        If the values are not of the types of the key columns, or too many or too few.
    """
    for value in key:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise StateError(
                f"the key value {value!r} has more than 64 bits: no column of integers holds it. Give a Decimal for "
                "a column of decimals"
            )
    call = State(state._job, state.operator, tuple(key))
    parts = [read_table(part) for part in call_scheduler(state._client, call)]
    return pa.concat_tables(parts) if parts else pa.table({})

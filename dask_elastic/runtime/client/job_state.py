"""The state of a stateful operator, read at the homes of its executors."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.runtime.protocol.calls import Ask
from dask_elastic.runtime.protocol.job_calls import State
from dask_elastic.runtime.protocol.tables import read_table, total_rows

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 10
"""Rows in the interpreter and in notebooks."""

WIDEST = 40
"""Characters of a value that are shown there."""


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
    ...     state
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    np.int64(3)
    {'letter': 'a', 'seen': 2}
    State of 'per_letter' in job 'letters': 2 keys
    letter  seen
         a     2
         b     1
    """

    def __init__(self, ask: Ask, job: str, operator: str):
        self._ask = ask
        self._job = job
        self.operator = operator

    def __repr__(self) -> str:
        title, rows = self._preview()
        return f"{title}\n{rows.to_string(index=False, max_colwidth=WIDEST)}" if len(rows) else title

    def _repr_html_(self) -> str:
        import pandas as pd

        title, rows = self._preview()
        with pd.option_context("display.max_colwidth", WIDEST):
            table = rows.to_html(index=False, border=0) if len(rows) else ""
        return f"<div><strong>{escape(title)}</strong>{table}</div>"

    def _preview(self) -> tuple[str, pd.DataFrame]:
        """Return a title and the first rows; the executors send no others."""
        parts = [read_table(part) for part in self._ask(State(self._job, self.operator, first=SHOWN))]
        total = sum(map(total_rows, parts))
        rows = pa.concat_tables([part.replace_schema_metadata() for part in parts]) if parts else pa.table({})
        shown = f", the first {SHOWN}" if total > SHOWN else ""
        title = f"State of {self.operator!r} in job {self._job!r}: {total:,} key{'' if total == 1 else 's'}{shown}"
        return title, rows.slice(0, SHOWN).to_pandas()

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

"""Dead letters: rows on which user code failed; all are counted, and kept up to a limit of bytes."""

from __future__ import annotations

import threading

import pyarrow as pa

from dask_elastic.executor.error_policy import DeadLetter

JOINED = 1_000
"""Kept rows are joined into batches of this many."""

KEPT_BYTES = 64 * 2**20
"""The most bytes of rows that a node keeps for one job; rows beyond that are only counted."""


class DeadLetters:
    """Dead letters of one job on one node; thread-safe.

    Parameters
    ----------
    limit : int
        Bytes of rows to keep; beyond it they are counted only.

    Attributes
    ----------
    counts : dict of str to int
        Rows by operator.
    """

    def __init__(self, limit: int = KEPT_BYTES):
        self.limit = limit
        self.counts: dict[str, int] = {}
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._single: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, letter: DeadLetter) -> None:
        """Count a row, and keep it with its error in the column ``__error``."""
        row = letter.rows.append_column("__error", pa.array([letter.error] * letter.rows.num_rows))
        # A slice would keep its whole batch in memory.
        row = row.take(pa.array(range(row.num_rows)))
        with self._lock:
            self.counts[letter.operator] = self.counts.get(letter.operator, 0) + row.num_rows
            if self._bytes < self.limit:
                self._bytes += row.nbytes
                self._keep(letter.operator, row)

    def _keep(self, operator: str, row: pa.RecordBatch) -> None:
        # A batch of one row takes a hundred times the row's bytes, so single rows are joined.
        single = self._single.setdefault(operator, [])
        if single and (len(single) == JOINED or not single[0].schema.equals(row.schema)):
            self._kept.setdefault(operator, []).append(pa.concat_batches(single))
            single.clear()
        single.append(row)

    def rows(self, operator: str) -> pa.Table | None:
        """Return the kept rows of an operator, None when there are none."""
        with self._lock:
            kept = [*self._kept.get(operator, ()), *self._single.get(operator, ())]
        return pa.Table.from_batches(kept).combine_chunks() if kept else None

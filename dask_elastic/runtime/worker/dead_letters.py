"""Dead letters: rows on which user code failed; all are counted, and kept up to a limit of bytes."""

from __future__ import annotations

import threading

import pyarrow as pa

from dask_elastic.executor.error_policy import FailedRows

JOINED = 1_000
"""Kept rows are joined into batches of this many or more."""

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
        self._parts: dict[str, list[pa.RecordBatch]] = {}
        self._part_rows: dict[str, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, failed: FailedRows) -> None:
        """Count rows, and keep them with their errors in the column ``__error``."""
        rows = failed.rows.append_column("__error", pa.array(failed.errors, pa.string()))
        with self._lock:
            self.counts[failed.operator] = self.counts.get(failed.operator, 0) + rows.num_rows
            room = self.limit - self._bytes
            if room <= 0:
                return
            if rows.nbytes > room:
                most = max(1, room * rows.num_rows // rows.nbytes)
                # A slice would keep the whole batch in memory.
                rows = rows.take(pa.array(range(most)))
            self._bytes += rows.nbytes
            self._keep(failed.operator, rows)

    def _keep(self, operator: str, rows: pa.RecordBatch) -> None:
        # A batch of one row takes a hundred times the row's bytes, so small batches are joined.
        parts = self._parts.setdefault(operator, [])
        if parts and (self._part_rows[operator] >= JOINED or not parts[0].schema.equals(rows.schema)):
            self._kept.setdefault(operator, []).append(pa.concat_batches(parts))
            parts.clear()
        self._part_rows[operator] = rows.num_rows + (self._part_rows[operator] if parts else 0)
        parts.append(rows)

    def rows(self, operator: str) -> pa.Table | None:
        """Return the kept rows of an operator, None when there are none."""
        with self._lock:
            kept = [*self._kept.get(operator, ()), *self._parts.get(operator, ())]
        # Rows and results of windows that raise have other columns; each lacks those of the other.
        tables = [pa.Table.from_batches([rows]) for rows in kept]
        return pa.concat_tables(tables, promote_options="default").combine_chunks() if kept else None

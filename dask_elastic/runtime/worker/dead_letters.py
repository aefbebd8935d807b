"""Dead letters: rows on which user code failed; all are counted, and kept up to a limit of bytes."""

from __future__ import annotations

import threading

import pyarrow as pa

from dask_elastic.executor.error_policy import FailedRows

JOINED = 1_000
"""Kept rows are joined into batches of this many or more."""

SCHEMA_BYTES = 4_096
"""What the first rows with other columns take beside their data."""

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
        # Rows, and results of windows that raise, have other columns, and may come in turn.
        self._parts: dict[tuple[str, pa.Schema], list[pa.RecordBatch]] = {}
        self._part_rows: dict[tuple[str, pa.Schema], int] = {}
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
        key = (operator, rows.schema)
        if key not in self._parts:
            self._parts[key], self._part_rows[key] = [], 0
            self._bytes += SCHEMA_BYTES
        parts = self._parts[key]
        parts.append(rows)
        self._part_rows[key] += rows.num_rows
        if self._part_rows[key] >= JOINED:
            self._kept.setdefault(operator, []).append(parts[0] if len(parts) == 1 else pa.concat_batches(parts))
            parts.clear()
            self._part_rows[key] = 0

    def rows(self, operator: str) -> pa.Table | None:
        """Return the kept rows of an operator, None when there are none; takes long if they are many."""
        with self._lock:
            parts = [rows for (name, _), waiting in self._parts.items() if name == operator for rows in waiting]
            kept = [*self._kept.get(operator, ()), *parts]
        # Each kind of rows lacks the columns of the others.
        tables = [pa.Table.from_batches([rows]) for rows in kept]
        return pa.concat_tables(tables, promote_options="default").combine_chunks() if kept else None

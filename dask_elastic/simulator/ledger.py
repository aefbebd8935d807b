"""Counts the rows that executors received and processed, to find rows that are lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.task_queue import Work
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

Hashes = npt.NDArray[np.uint64]


class Ledger:
    """Counts rows per key, and checks the order of rows that carry a sequence number.

    Parameters
    ----------
    order : sequence of str, optional
        Columns, of which the last must rise among the rows that are equal in the others; batches without them are not
        checked. Key, upstream instance and sequence number express the order that the engine promises.

    Examples
    --------
    >>> import pyarrow as pa
    >>> ledger = Ledger(order=("key", "number"))
    >>> rows = pa.record_batch({"key": ["a", "a"], "number": [2, 1]})
    >>> batch = Batch(rows, np.array([7, 7], dtype=np.uint64), 0.0)
    >>> ledger.processed(ExecutorId("per_key", 0), batch)
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.ProtocolError: per_key[0]: number 1 of ('a',) was processed after 2
    """

    def __init__(self, order: Sequence[str] = ()):
        self.rows = 0
        self._order = list(order)
        self._accepted: dict[ExecutorId, list[Hashes]] = {}
        self._processed: dict[ExecutorId, list[Hashes]] = {}
        # By component, since keys may move from one executor to another.
        self._last: dict[str, dict[tuple[object, ...], int]] = {}

    def accepted(self, executor: ExecutorId, batch: Batch) -> None:
        """Count rows that an executor received."""
        if batch.hashes is not None:
            self._accepted.setdefault(executor, []).append(batch.hashes)

    def processed(self, executor: ExecutorId, batch: Batch) -> None:
        """Count rows that an executor processed.

        Raises
        ------
        ProtocolError
            If a row is processed after one that should follow it.
        """
        if batch.hashes is not None:
            self._processed.setdefault(executor, []).append(batch.hashes)
        self.rows += batch.rows.num_rows
        if self._order and set(self._order) <= set(batch.rows.schema.names):
            self._check_order(executor, batch)

    def _check_order(self, executor: ExecutorId, batch: Batch) -> None:
        last = self._last.setdefault(executor.component, {})
        columns = [batch.rows.column(name).to_pylist() for name in self._order]
        for *key, number in zip(*columns, strict=True):
            before = last.get(tuple(key))
            if before is not None and number <= before:
                raise ProtocolError(f"{executor}: number {number} of {tuple(key)} was processed after {before}")
            last[tuple(key)] = number

    def settled(self, executor: ExecutorId, work: Work) -> None:
        """Count the rows of settled work; rows that are replayed after a loss count once."""
        for piece in work.pieces:
            # Rows in windows of two tasks count once.
            if not piece.receipt.settled and (work.side is None or work.side.later):
                rows, hashes = piece.block.part(piece.start, piece.stop)
                self.processed(executor, Batch(rows, hashes, piece.receipt.stamp))

    def processed_rows(self, executor: ExecutorId) -> int:
        """Return the number of rows that an executor has processed."""
        return sum(map(len, self._processed.get(executor, ())))

    def check_complete(self) -> None:
        """Compare the processed rows with the received ones.

        Raises
        ------
        ProtocolError
            If the rows of a key were not processed exactly once.
        """
        for executor in self._accepted.keys() | self._processed.keys():
            accepted, processed = _counts(self._accepted.get(executor)), _counts(self._processed.get(executor))
            if accepted != processed:
                keys = accepted.keys() | processed.keys()
                wrong = [key for key in keys if accepted.get(key, 0) != processed.get(key, 0)]
                key = min(wrong)
                raise ProtocolError(
                    f"{executor}: {processed.get(key, 0)} of {accepted.get(key, 0)} rows of the key with hash {key} "
                    f"were processed, and {len(wrong) - 1} more keys are wrong"
                )


def _counts(hashes: list[Hashes] | None) -> dict[int, int]:
    if not hashes:
        return {}
    keys, counts = np.unique(np.concatenate(hashes), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))

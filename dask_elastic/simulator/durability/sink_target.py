"""The system that the sinks of a simulated job write to: prepared transactions, and the rows that readers see."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class Transaction:
    """A handle of what a writer has prepared; as the names of the files of `sinks.Parquet`.

    Parameters
    ----------
    generation : int
        The generation of the writer.
    after : int
        The checkpoint that the writer had prepared before.
    checkpoint : int
        The checkpoint for which it is prepared.
    sink : ExecutorId
        The writer.
    """

    generation: int
    after: int
    checkpoint: int
    sink: ExecutorId


@dataclass
class SinkTarget:
    """What sinks have prepared, and what they have made visible.

    Parameters
    ----------
    group, number : tuple of str, str
        Columns of the rows: those of one group become visible in the order of their numbers, which are 1, 2, ...

    Attributes
    ----------
    hidden : dict of Transaction to tuple of RecordBatch
        What is prepared and not visible.
    visible : dict of Transaction to int
        The committed transactions and their rows, in the order of their commits.
    repeated : int
        Transactions that were committed again.
    deleted : int
        Transactions that were deleted because their rows are replayed.
    """

    group: tuple[str, ...]
    number: str
    hidden: dict[Transaction, tuple[pa.RecordBatch, ...]] = field(default_factory=dict)
    visible: dict[Transaction, int] = field(default_factory=dict)
    repeated: int = 0
    deleted: int = 0
    _seen: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def prepare(self, transaction: Transaction, rows: tuple[pa.RecordBatch, ...]) -> None:
        """Write rows that readers do not see."""
        self.hidden[transaction] = rows

    def commit(self, transaction: Transaction) -> None:
        """Make a transaction visible; again, it changes nothing.

        Raises
        ------
        ProtocolError
            If it was deleted, or its rows are not the next ones: some are lost, or visible twice.
        """
        if transaction in self.visible:
            self.repeated += 1
            return
        batches = self.hidden.pop(transaction, None)
        if batches is None:
            raise ProtocolError(f"{transaction} is committed, but was never prepared, or was deleted")
        for rows in batches:
            columns = [rows.column(name).to_pylist() for name in (*self.group, self.number)]
            for *group, number in zip(*columns, strict=True):
                self._check_next(transaction, tuple(group), number)
        self.visible[transaction] = sum(rows.num_rows for rows in batches)

    def _check_next(self, transaction: Transaction, group: tuple[object, ...], number: int) -> None:
        seen = self._seen[group]
        if number != seen + 1:
            what = "visible a second time" if number <= seen else "visible before earlier rows"
            raise ProtocolError(f"{transaction}: row {number} of {group} becomes {what}; {seen} are visible")
        self._seen[group] = number

    def delete_replayed(self, generation: int, checkpoint: int) -> None:
        """Delete what earlier generations prepared of rows behind a checkpoint."""
        for transaction in [t for t in self.hidden if t.generation < generation and t.after >= checkpoint]:
            del self.hidden[transaction]
            self.deleted += 1

    @property
    def rows(self) -> int:
        """The number of visible rows."""
        return sum(self.visible.values())

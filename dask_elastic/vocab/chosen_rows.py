"""Some rows of a batch that several tasks share, copied column by column and only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.gather import take_column, take_rows

Values = Callable[[pa.RecordBatch], pa.Array]
"""Returns one value for each row of a batch."""


class EvaluationCosts(Protocol):
    """Decides whether a function is evaluated on all rows of a batch or on a copy of the chosen ones."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def prefers_all(self, function: Hashable, chosen: int, rows: int) -> bool:
        """Whether it takes less time to evaluate a function on all `rows` rows than to copy `chosen` rows for it."""
        ...

    def note_copied(self, function: Hashable, rows: int, copying: float, evaluating: float) -> None:
        """Note the seconds of copying rows and of evaluating a function on the copy."""
        ...

    def note_all(self, function: Hashable, rows: int, evaluating: float) -> None:
        """Note the seconds of evaluating a function on a whole batch."""
        ...


class ChosenRows:
    """Rows of a batch, in the batch's order, with the methods of a `RecordBatch` that aggregates need.

    Parameters
    ----------
    source : pyarrow.RecordBatch
        The batch.
    numbers : numpy.ndarray of intp
        The numbers of the chosen rows, ascending.

    Attributes
    ----------
    numbers : numpy.ndarray of intp
        The numbers of the chosen rows.
    costs : EvaluationCosts or None
        Decides how functions are evaluated; None to copy their columns always.

    Examples
    --------
    >>> rows = ChosenRows(pa.record_batch({"plane": ["a", "b", "c"], "delay": [3, 5, 7]}), np.array([0, 2]))
    >>> rows.column("delay").to_pylist(), rows.take(pa.array([1])).to_pylist()
    ([3, 7], [{'plane': 'c', 'delay': 7}])
    """

    __slots__ = ("_columns", "costs", "num_rows", "numbers", "schema", "source")

    def __init__(self, source: pa.RecordBatch, numbers: npt.NDArray[np.intp]) -> None:
        self.source = source
        self.schema = source.schema
        self.num_rows = len(numbers)
        self.costs: EvaluationCosts | None = None
        self.numbers = numbers
        self._columns: dict[int, pa.Array] = {}

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        """The size of the rows in bytes, by the mean row of the batch."""
        return int(self.source.nbytes * self.num_rows / max(1, self.source.num_rows))

    def copied(self) -> pa.RecordBatch:
        """Return a copy of the rows."""
        return take_rows(self.source, self.numbers)

    def column(self, name: str | int) -> pa.Array:
        """Return the rows' values of a column, by name or position."""
        position = self.schema.names.index(name) if isinstance(name, str) else name
        if position not in self._columns:
            self._columns[position] = take_column(self.source.column(position), self.numbers)
        return self._columns[position]

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return a copy of some columns."""
        fields = pa.schema([self.schema.field(name) for name in names])
        return pa.RecordBatch.from_arrays([self.column(name) for name in names], schema=fields)

    def take(self, positions: pa.Array) -> pa.RecordBatch:
        """Return a copy of the rows at given positions among the chosen ones."""
        return self.source.take(array_of(self.numbers.take(numpy_of(positions))))

    def column_at(self, position: int, rows: npt.NDArray[np.intp]) -> pa.Array:
        """Return the values of a column in rows at given positions among the chosen ones."""
        return self.source.column(position).take(array_of(self.numbers.take(rows)))

    def slice(self, start: int, length: int) -> pa.RecordBatch:
        """Return a copy of a range of the rows."""
        return take_rows(self.source, self.numbers[start : start + length])

    def evaluated(self, function: Values, names: Sequence[str]) -> pa.Array:
        """Return the values of a function of some columns, one for each row.

        Parameters
        ----------
        function : callable
            The function; the value of a row must not depend on the other rows.
        names : sequence of str
            The columns that it gets.

        Returns
        -------
        pyarrow.Array
            The values.

        Notes
        -----
        Copying wide columns takes much longer than a function that needs little of them, such as the length of a text.
        Such a function is evaluated on all rows of the batch without a copy, also by each other task that has rows of
        the batch. If it raises there, it is evaluated on the chosen rows alone, so that other rows cannot fail these.
        """
        costs = self.costs
        if costs is None:
            return function(self.select(names))
        if costs.prefers_all(function, self.num_rows, self.source.num_rows):
            began = costs.now()
            try:
                values = function(self.source.select(names))
            except Exception:  # user code; evaluated again below, where the error counts
                values = None
            costs.note_all(function, self.source.num_rows, costs.now() - began)
            if values is not None:
                return take_column(values, self.numbers)
        began = costs.now()
        rows = self.select(names)
        copied = costs.now()
        values = function(rows)
        costs.note_copied(function, self.num_rows, copied - began, costs.now() - copied)
        return values


def copied(rows: pa.RecordBatch | ChosenRows) -> pa.RecordBatch:
    """Return rows as a batch: chosen ones are copied.

    Parameters
    ----------
    rows : pyarrow.RecordBatch or ChosenRows
        The rows.

    Returns
    -------
    pyarrow.RecordBatch
        The rows.

    Examples
    --------
    >>> copied(ChosenRows(pa.record_batch({"plane": ["a", "b"]}), np.array([1]))).to_pylist()
    [{'plane': 'b'}]
    """
    return rows.copied() if isinstance(rows, ChosenRows) else rows


def taken(rows: pa.RecordBatch | ChosenRows, positions: npt.NDArray[np.intp]) -> pa.RecordBatch | ChosenRows:
    """Return some rows, which may repeat; chosen ones are not copied yet.

    Parameters
    ----------
    rows : pyarrow.RecordBatch or ChosenRows
        The rows.
    positions : numpy.ndarray of intp
        The positions of those to return.

    Returns
    -------
    pyarrow.RecordBatch or ChosenRows
        The rows.

    Examples
    --------
    >>> rows = ChosenRows(pa.record_batch({"plane": ["a", "b"]}), np.array([1]))
    >>> taken(rows, np.array([0, 0])).column("plane").to_pylist()
    ['b', 'b']
    """
    if not isinstance(rows, ChosenRows):
        return take_rows(rows, positions)
    some = ChosenRows(rows.source, rows.numbers.take(positions))
    some.costs = rows.costs
    return some
